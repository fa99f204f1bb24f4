"""Files: atomic writes, digests, and locks between processes."""

from .locks import lock, open_lock
from .read import (
    absolute_path,
    digest_files,
    manifest_path,
    nearest_name,
    read_bytes,
    read_json,
    require_file,
    side_files,
)
from .storage import TEMPORARY
from .temporary import locked_folder, public_names, remove_stale, temporary_folder
from .write import check_output, write_json, write_text, writing

__all__ = [
    "TEMPORARY",
    "absolute_path",
    "check_output",
    "digest_files",
    "lock",
    "locked_folder",
    "manifest_path",
    "nearest_name",
    "open_lock",
    "public_names",
    "read_bytes",
    "read_json",
    "remove_stale",
    "require_file",
    "side_files",
    "temporary_folder",
    "write_json",
    "write_text",
    "writing",
]  # fmt: skip
