"""The version, apart from `__init__`: what lies below may ask for it; and those of installed packages."""

import re

__version__ = "0.3.0"


def tool_versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages, qcompile's own first; absent ones are left out."""
    from importlib.metadata import PackageNotFoundError, distribution

    versions = {"qcompile": __version__}
    for package in packages:
        try:
            found = distribution(package)
        except PackageNotFoundError:
            continue
        # All of its metadata would be parsed as a mail, in a hundred times the time.
        line = re.search(r"^Version: *(\S+)", found.read_text("METADATA") or "", re.MULTILINE)
        versions[package] = line[1] if line else found.version
    return versions
