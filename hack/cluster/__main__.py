"""The command line: ``python3 -m hack.cluster COMMAND``."""

import argparse
import os
import sys
from pathlib import Path
from collections.abc import Callable, Sequence

from hack.cluster import lifecycle
from hack.cluster import load
from hack.cluster.images import TARGETS, ImageStore
from hack.cluster.packages import ensure_packages
from hack.cluster.errors import ClusterError
from hack.cluster.layout import Layout, read_layout
from hack.cluster.progress import Progress
from hack.cluster.tools import DEFAULT_TOOLS, Toolbox, tool_named

Command = Callable[[argparse.Namespace, Layout, Progress], None]


def up(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Bring the cluster up."""
    with lifecycle.locked(layout, progress):
        lifecycle.up(layout, args.nodes, progress)
    print(progress.table(), file=sys.stderr)


def down(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Take the cluster down."""
    with lifecycle.locked(layout, progress):
        lifecycle.down(layout, progress, purge=args.purge)


def build_images(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Build images."""
    ensure_packages(layout, progress)
    for image in ImageStore(layout, progress).ensure(args.targets or TARGETS):
        print(f"{image.name}\t{image.digest}")


def load_image(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Build and load images; a file name means an archive."""
    plan = lifecycle.require_plan(layout)
    archives = [Path(name) for name in args.images if name.endswith(".tar")]
    targets = [name for name in args.images if not name.endswith(".tar")]
    load.load(layout, plan, ImageStore(layout, progress).ensure(targets), progress, args.nodes)
    for archive in archives:
        load.load_archive(layout, plan, archive, progress, args.nodes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m hack.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("up")
    p.add_argument("--nodes", type=int)
    p.set_defaults(run=up)
    p = commands.add_parser("down")
    p.add_argument("--purge", action="store_true")
    p.set_defaults(run=down)
    p = commands.add_parser("build-images")
    p.add_argument("targets", nargs="*")
    p.set_defaults(run=build_images)
    p = commands.add_parser("load-image")
    p.add_argument("images", nargs="+")
    p.add_argument("--nodes", default="all")
    p.set_defaults(run=load_image)
    args = parser.parse_args(argv)
    try:
        args.run(args, read_layout(os.environ), Progress())
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
