"""The version, apart from `__init__`: what lies below may ask for it; and those of installed packages."""

__version__ = "0.3.0"


def tool_versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages, qcompile's own first; absent ones are left out."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"qcompile": __version__}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
