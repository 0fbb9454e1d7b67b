"""This machine's pip configuration for image builds.

The settings (an index, a certificate, a folder of wheels) are merged into one file that is mounted
over /etc/pip.conf during a build. Neither images nor the repository contain the settings, and the
layer cache does not depend on them.
"""

import configparser
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

# Settings that are valid on this machine only, or that would change the place of the installation.
SKIPPED = {"cache-dir", "require-virtualenv", "user", "target", "prefix", "root", "log", "python", "config-file"}
PATHS = ("cert", "client-cert", "find-links")
CERTIFICATES = Path("/etc/ssl/certs")


def config_files(env: Mapping[str, str]) -> list[Path]:
    """Return the paths of pip's configuration files, in ascending precedence."""
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    base = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", base / "pip/pip.conf"]
    own = env.get("PIP_CONFIG_FILE", "")
    return [*files, Path(own)] if own and own != os.devnull else files


def merge(files: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of several pip.conf texts and of PIP_* variables; later ones override earlier ones."""
    settings: dict[str, str] = {}
    for text in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(text)
        except configparser.Error:
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    for name, value in env.items():
        if name.startswith("PIP_") and value:
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return {name: value for name, value in sorted(settings.items()) if name not in SKIPPED}


def render(settings: Mapping[str, str]) -> str:
    """Return a pip.conf with these settings."""
    parser = configparser.RawConfigParser()
    parser["global"] = dict(settings)
    out = io.StringIO()
    parser.write(out)
    return out.getvalue()


def mounts(settings: Mapping[str, str], conf: Path) -> list[tuple[Path, Path]]:
    """Return the mounts of a build as (from, to): certificates, the file, and folders that it names."""
    found = {CERTIFICATES: CERTIFICATES} if CERTIFICATES.is_dir() else {}
    for name in PATHS:
        for part in settings.get(name, "").split():
            path = Path(part.removeprefix("file://"))
            if path.is_absolute() and path.exists() and not path.is_relative_to(CERTIFICATES):
                found[path] = path
    found[conf] = Path("/etc/pip.conf")
    return list(found.items())


def read_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return this machine's settings."""
    texts = [path.read_text(encoding="utf-8") for path in config_files(env) if path.is_file()]
    return merge(texts, env)
