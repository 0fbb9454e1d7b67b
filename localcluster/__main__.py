"""The command line: ``python3 -m localcluster COMMAND``."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from localcluster import faults, gang, kueue, kwok, lifecycle, load, status
from localcluster.errors import ClusterError
from localcluster.images import BASE, TARGETS, Image, ImageStore
from localcluster.layout import Layout, read_layout
from localcluster.packages import ensure_packages
from localcluster.progress import Progress
from localcluster.tools import DEFAULT_TOOLS, Toolbox, tool_named

Command = Callable[[argparse.Namespace, Layout, Progress], None]


def up(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Bring the cluster up or repair it; with --images also build and load the images."""
    lifecycle.require_root()
    with lifecycle.locked(layout, progress), ThreadPoolExecutor(max_workers=2) as pool:
        images: Future[list[Image]] | None = pool.submit(prepare_images, layout, progress) if args.images else None
        cluster = lifecycle.up(layout, args.nodes, progress, ipv6=args.ipv6)
        # Tools that the cluster's users need, and the cluster itself does not.
        extra = pool.submit(cluster.toolbox.ensure, DEFAULT_TOOLS)
        if images is not None:
            load.load(layout, cluster.plan, images.result(), progress)
        extra.result()
    print(progress.table(), file=sys.stderr)
    folder = cluster.toolbox.path_folder(DEFAULT_TOOLS)
    print(f"export KUBECONFIG={layout.kubeconfig} PATH={folder}:$PATH")


def prepare_images(layout: Layout, progress: Progress) -> list[Image]:
    """Build the project's images; runs beside the Go builds."""
    ensure_packages(layout, progress)
    return ImageStore(layout, progress).ensure(TARGETS)


def down(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Take the cluster down; only the cache is kept."""
    lifecycle.require_root()
    with lifecycle.locked(layout, progress):
        lifecycle.down(layout, progress, purge=args.purge)
    progress.say(f"down; the cache is kept in {layout.cache}")


def show_status(_: argparse.Namespace, layout: Layout, __: Progress) -> None:
    """Show daemons, nodes and versions."""
    text, well = status.report(layout)
    print(text)
    if not well:
        raise ClusterError("a daemon or a node of the cluster is missing: 'up' repairs the cluster")


def kubeconfig(_: argparse.Namespace, layout: Layout, __: Progress) -> None:
    """Print the path of the kubeconfig."""
    lifecycle.require_plan(layout)
    print(layout.kubeconfig)


def build_images(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Build images whose inputs have changed; print names and digests."""
    ensure_packages(layout, progress)
    for image in ImageStore(layout, progress).ensure(args.targets or TARGETS):
        print(f"{image.name}\t{image.digest}")


def load_image(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Build and load images; a name that ends in .tar means an archive."""
    plan = lifecycle.require_plan(layout)
    archives = [Path(name) for name in args.images if name.endswith(".tar")]
    targets = [name for name in args.images if not name.endswith(".tar")]
    load.load(layout, plan, ImageStore(layout, progress).ensure(targets), progress, args.nodes)
    for archive in archives:
        load.load_archive(layout, plan, archive, progress, args.nodes)


def kill_container(args: argparse.Namespace, layout: Layout, _: Progress) -> None:
    """SIGKILL the first process of a pod's container."""
    target = faults.kill_container(args.pod, args.container, layout)
    print(f"killed {target.pod}/{target.container} on {target.node} (process {target.pid})")


def kill_process(args: argparse.Namespace, layout: Layout, _: Progress) -> None:
    """SIGKILL processes inside a pod's container, never its first one."""
    pids = faults.kill_process(args.pod, args.pattern, args.container, layout)
    print(f"killed {len(pids)}: {' '.join(map(str, pids))}")


def cut(args: argparse.Namespace, layout: Layout, _: Progress) -> None:
    """Pull a node's network cable."""
    print(f"{args.node}: {'cut' if faults.cut(args.node, layout) else 'was cut already'}")


def restore(args: argparse.Namespace, layout: Layout, _: Progress) -> None:
    """Plug a node's network cable in again."""
    print(f"{args.node}: {'restored' if faults.restore(args.node, layout) else 'was not cut'}")


def run_kwok(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Start or stop fake nodes."""
    plan = lifecycle.require_plan(layout)
    cluster = lifecycle.build_cluster(layout, plan, Toolbox(layout, progress))
    if args.action == "up":
        kwok.up(cluster, args.nodes)
    else:
        kwok.down(cluster)


def run_gang(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Start or stop a second scheduler, which places pods as gangs (scheduler-plugins)."""
    _run_part(gang.up if args.action == "up" else gang.down, layout, progress)


def run_kueue(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Start or stop Kueue, which admits pods by quota."""
    _run_part(partial(kueue.up, all_jobs=args.all_jobs) if args.action == "up" else kueue.down, layout, progress)


def _run_part(act: Callable[[lifecycle.Cluster], None], layout: Layout, progress: Progress) -> None:
    plan = lifecycle.require_plan(layout)
    act(lifecycle.build_cluster(layout, plan, Toolbox(layout, progress)))


def audit(_: argparse.Namespace, layout: Layout, __: Progress) -> None:
    """Print the path of the audit log, which always has one JSON line for every write."""
    lifecycle.require_plan(layout)
    print(layout.audit_log)


def bin_folder(_: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Build the default tools if needed; print their folder, for PATH."""
    toolbox = Toolbox(layout, progress)
    toolbox.ensure(DEFAULT_TOOLS)
    print(toolbox.path_folder(DEFAULT_TOOLS))


def one_tool(args: argparse.Namespace, layout: Layout, progress: Progress) -> None:
    """Build one tool if needed; print the program's path."""
    toolbox = Toolbox(layout, progress)
    tool = tool_named(args.name)
    toolbox.ensure([tool.name])
    programs = [program for _, program in tool.binaries]
    print(toolbox.folder(tool) / args.name if args.name in programs else toolbox.folder(tool))


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands and their options."""
    top = argparse.ArgumentParser(prog="python3 -m localcluster", description="A real Kubernetes on this machine.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Command) -> argparse.ArgumentParser:
        text = (run.__doc__ or "").strip()
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    command = add("up", up)
    command.add_argument("--nodes", type=int, help="number of nodes (default: as before, or 2)")
    command.add_argument("--images", action="store_true", help="also build and load the project's images")
    command.add_argument("--ipv6", action="store_true", help="nodes, pods and Services have IPv6 addresses only")
    command = add("down", down)
    command.add_argument("--purge", action="store_true", help="also drop the images loaded into the nodes")
    add("status", show_status)
    add("kubeconfig", kubeconfig)
    command = add("build-images", build_images)
    command.add_argument("targets", nargs="*", help=f"{', '.join(TARGETS)} (default: both) or {BASE} (the base)")
    command = add("load-image", load_image)
    command.add_argument("images", nargs="+", help=f"{', '.join([*TARGETS, BASE])} or an archive (.tar)")
    command.add_argument("--nodes", default="all", help="all (default) or names with commas")
    command = add("kill-container", kill_container)
    command.add_argument("pod", help="NAMESPACE/POD")
    command.add_argument("container", nargs="?")
    command = add("kill-process", kill_process)
    command.add_argument("pod", help="NAMESPACE/POD")
    command.add_argument("pattern", help="regular expression for the command line")
    command.add_argument("--container")
    add("cut", cut).add_argument("node")
    add("restore", restore).add_argument("node")
    command = add("kwok", run_kwok)
    command.add_argument("action", choices=("up", "down"))
    command.add_argument("--nodes", type=int, default=20)
    add("gang", run_gang).add_argument("action", choices=("up", "down"))
    command = add("kueue", run_kueue)
    command.add_argument("action", choices=("up", "down"))
    command.add_argument("--all-jobs", action="store_true", help="set manageJobsWithoutQueueName")
    add("audit", audit).add_argument("action", nargs="?", choices=("path",), default="path")
    add("bin", bin_folder)
    add("tool", one_tool).add_argument("name")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    args = parser().parse_args(argv)
    try:
        args.run(args, read_layout(os.environ), Progress())
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: 'up' continues, and 'down' cleans up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
