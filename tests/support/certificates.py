"""Certificates of a small authority, made with the command line of OpenSSL."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HAS_OPENSSL = shutil.which("openssl") is not None


def make_certificates(folder: Path, *names: str) -> dict[str, Path]:
    """Make an authority and one certificate that it signed.

    Args:
        folder: Where they are written: ca.pem, cert.pem, key.pem.
        names: Hosts and addresses that the certificate is for.

    Returns:
        "ca", "cert" and "key" to their files, as `Cluster` and the options `--tls-ca`, ... take them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key = folder / "ca.pem", folder / "ca-key.pem"
    cert, key, asked = folder / "cert.pem", folder / "key.pem", folder / "cert.csr"
    extensions = folder / "cert.ext"
    kinds = [f"{'IP' if name[0].isdigit() else 'DNS'}:{name}" for name in (names or ("127.0.0.1",))]
    extensions.write_text(f"subjectAltName={','.join(kinds)}\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority of a test",
        "-keyout", ca_key, "-out", ca,
    )  # fmt: skip
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a host", "-keyout", key, "-out", asked)
    _openssl(
        "x509", "-req", "-in", asked, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
        "-extfile", extensions, "-out", cert,
    )  # fmt: skip
    key.chmod(0o600)
    return {"ca": ca, "cert": cert, "key": key}


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)
