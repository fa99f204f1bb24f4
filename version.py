"""Versions of qcompile and of installed packages; a module that every other module can import."""

import re

__version__ = "0.3.0"


def tool_versions(*packages: str) -> dict[str, str]:
    """Return the versions of qcompile and of those `packages` that are installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    versions = {"qcompile": __version__}
    for package in packages:
        try:
            found = distribution(package)
        except PackageNotFoundError:
            continue
        # `found.version` parses all metadata as an e-mail message, which takes 100 times as long.
        line = re.search(r"^Version: *(\S+)", found.read_text("METADATA") or "", re.MULTILINE)
        versions[package] = line[1] if line else found.version
    return versions
