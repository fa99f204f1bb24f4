"""Look for known vulnerabilities of what constraints.txt pins, with pip-audit.

    make audit

pip-audit asks PyPI's JSON service, and ends with exit code 0 where that answers for no package. Here that is
an error: exit code 2 says that packages could not be looked up, 1 that some are vulnerable, 0 that none is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main(pip_audit: str) -> int:
    """Ask, and say for how many packages there was an answer."""
    words = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "-f", "json", "-r", "constraints.txt"]
    asked = subprocess.run([pip_audit, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if not asked.stdout.strip():
        print(f"pip-audit failed with exit code {asked.returncode}: its database could not be reached")
        return 2
    code, lines = verdict(json.loads(asked.stdout)["dependencies"])
    print("\n".join(lines))
    return code


def verdict(answers: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return exit code and lines for pip-audit's answers."""
    unknown = sorted(one["name"] for one in answers if "skip_reason" in one)
    vulnerable = [one for one in answers if one.get("vulns")]
    lines = [
        f"{one['name']} {one['version']}: {known['id']}, "
        f"fixed in {', '.join(known['fix_versions']) or 'no version'}"
        for one in vulnerable
        for known in one["vulns"]
    ]
    lines.append(
        f"{len(answers) - len(unknown)} of {len(answers)} packages looked up, {len(vulnerable)} vulnerable"
    )
    if unknown:
        lines.append(
            f"not looked up, as the database did not answer or does not know them: {', '.join(unknown)}"
        )
    return (1 if vulnerable else 2 if unknown else 0), lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
