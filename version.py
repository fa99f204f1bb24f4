"""The version, apart from `__init__`: what lies below may ask for it; and those of installed packages."""

import functools

__version__ = "0.3.0"


def tool_versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages, qcompile's own first; absent ones are left out."""
    found = {package: _installed(package) for package in packages}
    return {"qcompile": __version__, **{package: version for package, version in found.items() if version}}


@functools.cache
def _installed(package: str) -> str:
    """The version of a package, empty where it is absent. It is read once: each reading parses a file."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
