"""What workers announce to Dask, who may take part in a run, and which of them a stage may go to.

The page on clusters has the table of resources; `host=3f9c…` is the machine, whose workers take turns for
measurements. A stage takes one of each that it needs, and one of `slots`; a measurement takes all of them.
`pipeline.graph.KINDS` has a stage's needs: what a worker must have, and what it is better with.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import platform
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...core.artifact import tool_versions
from ...core.processor import processor
from ...errors import ClusterError, EngineUnavailable, InvalidOption, MissingFile, first_line
from ...spec.words import Isa
from ..recipe.recipe import Recipe
from ..stages.graph import kind_of
from ..stages.stage import Stage

if TYPE_CHECKING:
    from distributed import Security

PLENTY = 1000.0
"""What is announced of a capability that many stages may use at a time."""
MUST_MATCH = ("qcompile", "onnx", "onnxruntime", "onnxsim", "numpy", "torch", "onnxscript")
"""Packages whose versions a worker and its client have in common: they decide what the files hold."""
_SETS = {
    "cpu-avx2": ("avx2",),
    "cpu-avx512": ("avx512f",),
    "cpu-vnni": ("avx512_vnni", "avx_vnni"),
    "cpu-bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "cpu-fp16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "cpu-amx": ("amx_int8", "amx_bf16", "amx_fp16"),
    "cpu-dotprod": ("asimddp",),
    "cpu-i8mm": ("i8mm",),
    "cpu-sve": ("sve",),
}
"""Resource to the flags of /proc/cpuinfo of which one is enough."""


@dataclass(frozen=True)
class Facts:
    """What a worker announces: `resources` are those of the module's table."""

    name: str
    address: str
    resources: Mapping[str, float]

    def value(self, name: str, between: str) -> str:
        """Return what stands behind a resource's name: "1.23.0" of "onnx==1.23.0"; empty where none does."""
        head = f"{name}{between}"
        return next((text.removeprefix(head) for text in self.resources if text.startswith(head)), "")


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that matter, of those installed; nothing is imported."""
    versions = tool_versions(*MUST_MATCH, "tensorrt")
    from ...engines.onnx_runtime.words import PACKAGES

    _, *runtimes = tool_versions(*reversed(PACKAGES)).values()  # the first is qcompile's; the last one counts
    return {**versions, "onnxruntime": runtimes[-1]} if runtimes else versions


def why_refused(facts: Facts) -> str:
    """Return why a worker may not carry out stages for this client; empty where it may.

    A package that only one of them has is no reason.
    """
    required = versions_here()
    different = [
        f"{name} {version}; {required[name]} is required"
        for name in MUST_MATCH
        if name in required and (version := facts.value(name, "==")) and version != required[name]
    ]
    return f"worker {facts.name} ({facts.address}) has {', '.join(different)}" if different else ""


def resources_here() -> dict[str, float]:
    """Return what this machine has; imports the runtimes, but not torch, whose import takes seconds."""
    from ...engines.gpu import find_gpus
    from ...engines.registry import engine, names

    no_torch = "" if "torch" in tool_versions("torch") else "torch is not installed"
    why_not = {
        name: no_torch if engine(name).takes == "pytorch" else engine(name).why_not_build()
        for name in names()
    }
    versions = versions_here()
    present = [name for name, reason in why_not.items() if not reason]
    if "tensorrt" in present and "tensorrt" in versions:
        present.append(f"tensorrt-{versions['tensorrt'].split('.')[0]}")
    if "torch" in versions and "onnxscript" in versions:
        present.append("export")
    features = processor()["features"]
    flags = set(features) if isinstance(features, list) else set()
    present += [name for name, needed in _SETS.items() if flags & set(needed)]
    present += [f"{name}=={versions[name]}" for name in MUST_MATCH if name in versions]
    gpus = Counter(f"gpu-{gpu.architecture}" for gpu in find_gpus())
    return {**dict.fromkeys([*present, f"host={host_id()}"], PLENTY), **gpus}


def host_id() -> str:
    """Return 16 hexadecimal digits that are the same for all processes of one kernel since its start.

    The kernel's boot id also joins containers on one machine, which share its cores and devices. Where the
    system does not tell it, the machine's id and its name stand for it.
    """
    identity = f"no machine id {platform.node()}"
    for path, name in (("/proc/sys/kernel/random/boot_id", ""), ("/etc/machine-id", f" {platform.node()}")):
        with contextlib.suppress(OSError):
            identity = Path(path).read_text(encoding="ascii", errors="replace").strip() + name
            break
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def isa_announced(facts: Facts) -> Isa | None:
    """Return the instruction set that multiplies integers on a worker; None where it does not tell."""
    has = facts.resources
    if has.get("cpu-avx2") or has.get("cpu-avx512"):
        vnni: Isa = "avx512-vnni" if has.get("cpu-avx512") else "avx-vnni"
        return "amx" if has.get("cpu-amx") else vnni if has.get("cpu-vnni") else "avx2"
    arm: Mapping[str, Isa] = {"cpu-i8mm": "i8mm", "cpu-dotprod": "neon-dotprod"}
    return next((isa for name, isa in arm.items() if has.get(name)), None)


def place(
    recipe: Recipe, stage: Stage, workers: Sequence[Facts], home: Facts | None = None
) -> tuple[list[str], dict[str, float]]:
    """Return the addresses of the workers that a stage may go to, the best first, and what it takes there.

    `home` is the worker that will measure what is built: another processor may run it otherwise.
    """
    needs, alone = kind_of(stage).needs(recipe, stage), kind_of(stage).measures
    able = [facts for facts in sorted(workers, key=lambda facts: facts.name) if _has(facts, needs.required)]
    if needs.gpu and not alone:
        able = [facts for facts in able if gpus_of(facts)]
    if not able:
        required = needs.required or ("a GPU",)
        missing = [name for name in required if not any(_has(facts, (name,)) for facts in workers)]
        words = " and ".join(missing or required)
        names = {name for facts in workers for name in facts.resources if "=" not in name} - {"slots"}
        raise EngineUnavailable(
            f"{stage.name}: no worker has {words}; they announce {', '.join(sorted(names)) or 'nothing'}",
            hint="start a worker that has it; `qcompile doctor` there says why it has not",
            engine=required[0],
            reason=f"no worker has {words}",
        )
    for name in needs.preferred:
        able = [facts for facts in able if _has(facts, (name,))] or able
    if needs.gpu and alone:
        able = [facts for facts in able if gpus_of(facts)] or able
    if home is not None and needs.as_measured and not needs.gpu:
        able = [facts for facts in able if _processor(facts) == _processor(home)] or able
    able = able[:1] if alone else able
    slots = able[0].resources["slots"] if alone else 1.0
    resources = {"slots": slots, **dict.fromkeys(needs.required, 1.0)}
    shared = set.intersection(*(set(gpus_of(facts)) for facts in able))
    if needs.gpu and not alone and shared:  # else each has another kind, and Dask cannot count "any of them"
        resources[min(shared)] = 1.0
    return [facts.address for facts in able], resources


def gpus_of(facts: Facts) -> list[str]:
    """Return the resources of a worker's GPUs: "gpu-sm90"."""
    return sorted(name for name, number in facts.resources.items() if name.startswith("gpu-") and number >= 1)


def _has(facts: Facts, names: Sequence[str]) -> bool:
    return all(facts.resources.get(name, 0) >= 1 for name in names)


def _processor(facts: Facts) -> set[str]:
    return {name for name in facts.resources if name.startswith("cpu-")}


# Which addresses are spoken to: by TLS any, without it this machine alone. A scheduler runs what it is told
# to by whoever reaches it, and so do its workers: another host must be named twice, `--insecure HOST` each.
_PROTOCOLS = ("tls", "wss", "tcp", "ws", "inproc")
_TWICE = 2


def scheduler_error(address: str, problem: str, hint: str) -> ClusterError:
    """Return the error of a scheduler."""
    return ClusterError(f"scheduler {address}: {problem}", hint=hint, address=address)


def split_address(address: str) -> tuple[str, str, int | None]:
    """Return protocol, host and port of an address; "tcp" where it names no protocol."""
    text = address.strip() if "://" in address else f"tcp://{address.strip()}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _wrong(address, str(error)) from error
    if parts.scheme not in _PROTOCOLS:
        problem = f"has the protocol {parts.scheme!r}; one of {', '.join(_PROTOCOLS)} is required"
        raise _wrong(address, problem)
    if parts.scheme == "inproc":
        return parts.scheme, host, None
    if not host or parts.path.strip("/") or set(parts.netloc) & set("@ %"):
        raise _wrong(address, "names no host; PROTOCOL://HOST:PORT is required")
    return parts.scheme, host, port


def check_address(address: str, insecure: Sequence[str] = (), *, what: str = "scheduler") -> None:
    """Refuse an address of another host without TLS that the user did not name twice in `insecure`."""
    protocol, host, _ = split_address(address)
    if protocol not in ("tcp", "ws") or is_this_machine(host):
        return
    times = sum(name.strip().strip("[]").lower() == host.lower() for name in insecure)
    if times >= _TWICE:
        return
    hint = f"use tls:// with `tls_ca`, `tls_cert` and `tls_key`; or give `insecure` {host} twice"
    if times == 1:
        hint = f"give `insecure` {host} once more: whoever is on that network can run code on the cluster"
    raise ClusterError(
        f"{what} {address}: is another host without TLS; TLS or an address of this machine is required",
        hint=hint,
        address=address,
    )


def is_this_machine(host: str) -> bool:
    """Whether a host is an address of the loopback device, or the name that all systems give it."""
    if host.lower().rstrip(".") in ("localhost", "ip6-localhost", "localhost.localdomain"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name: who answers for it is another's to say
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def read_scheduler(text: str) -> str:
    """Return the address of a scheduler given as an address, or as the file that Dask writes of it."""
    path = Path(text)
    if "://" in text or not (path.suffix == ".json" or path.is_file()):
        return text
    if not path.is_file():
        raise MissingFile(f"scheduler file {path}: does not exist", hint="give tls://HOST:PORT", file=path)
    try:
        address = json.loads(path.read_bytes())["address"]
        if not isinstance(address, str):
            raise TypeError("no text")
        return address
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"scheduler file {path}: holds no address; what `dask scheduler` writes is"
        raise InvalidOption(f"{problem} required", option="scheduler", file=path) from error


def security(ca: Path | None, cert: Path | None, key: Path | None) -> Security | None:
    """Return what Dask needs for TLS; None without it."""
    files = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
    if not any(files.values()):
        return None
    for option, path in files.items():
        if path is None:
            other = next(name for name, file in files.items() if file)
            raise InvalidOption(f"`{option}` is missing; it is required with `{other}`", option=option)
        if not path.is_file():
            raise MissingFile(f"`{option}` {path}: does not exist; a file is required", file=path)
    from distributed import Security

    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(ca))
        context.load_cert_chain(str(cert), str(key), password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidOption(
            f"`tls_ca` {ca}, `tls_cert` {cert} and `tls_key` {key}: cannot be used ({first_line(error)})",
            hint="give the authority's certificate, this machine's and its unencrypted private key, as PEM",
            option="tls_cert",
        ) from error
    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=str(ca),
        **{f"tls_{role}_cert": str(cert) for role in ("client", "scheduler", "worker")},
        **{f"tls_{role}_key": str(key) for role in ("client", "scheduler", "worker")},
    )


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _wrong(address: str, problem: str) -> InvalidOption:
    hint = "tls://HOST:PORT, or the file that `dask scheduler` writes"
    return InvalidOption(f"`scheduler` {address!r}: {problem}", hint=hint, option="scheduler")
