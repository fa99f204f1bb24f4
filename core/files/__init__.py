"""Files: written whole or not at all, told apart by digest, held by one process at a time."""

from .storage import (
    TEMPORARY,
    absolute_path,
    digest_files,
    manifest_path,
    nearest_name,
    read_bytes,
    read_json,
    require_file,
    side_files,
)
from .temporary import (
    check_output,
    held_folder,
    lock,
    open_lock,
    public_names,
    remove_stale,
    temporary_folder,
    write_json,
    write_text,
    writing,
)

__all__ = [
    "TEMPORARY", "absolute_path", "check_output", "digest_files", "held_folder", "lock", "manifest_path",
    "nearest_name", "open_lock", "public_names", "read_bytes", "read_json", "remove_stale", "require_file",
    "side_files", "temporary_folder", "write_json", "write_text", "writing",
]  # fmt: skip
