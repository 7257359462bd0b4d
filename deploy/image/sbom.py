"""Writes the tree's bill of materials, CycloneDX 1.6, into share/sbom.cdx.json, and the licences of what came from the base beside it.

    sbom.py /opt/stallscope /bin/busybox      # inside the build, by the environment that cyclonedx-py is installed in

The Python packages are listed by cyclonedx-py, from what is installed in the tree and not from a lock file.  It knows nothing of
the interpreter, the C library and OpenSSL, which tree.py brought from the base's packages and which most advisories are
about: these are added, as the base's package manager names them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator

FIELDS = "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}"


def main(words: list[str]) -> int:
    """Describe the tree that the first argument names; the others are files from the base's packages that are shipped beside it."""
    root, *beside = words
    target = Path(root, "share/sbom.cdx.json")
    command = [
        str(Path(sys.executable).with_name("cyclonedx-py")), "environment", "--output-reproducible", "--sv", "1.6",
        f"{root}/bin/python",
    ]  # fmt: skip
    bill = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    record = Path(root, "share/brought.json")
    files = [*json.loads(record.read_text()).values(), *beside]
    record.unlink()
    packages = {package["bom-ref"]: package for package in map(_package, files)}
    bill["components"] += sorted(packages.values(), key=lambda each: str(each["name"]))
    text = json.dumps(bill, indent=1)
    validator = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6)
    if fault := validator.validate_str(text):
        raise SystemExit(f"sbom.py: not CycloneDX: {fault}")
    target.write_text(text)
    for package in packages.values():
        notice = Path("/usr/share/doc", str(package["name"]), "copyright")
        if notice.exists():
            (target.parent / "licenses").mkdir(exist_ok=True)
            shutil.copy(notice, target.parent / "licenses" / f"{package['name']}.txt")
    print(f"{target}: {len(bill['components'])} components, {len(packages)} of them from the base")
    return 0


def _package(file: str) -> dict[str, Any]:
    """The component that a file of the base belongs to: its Debian package, else Python itself, which the official image builds."""
    for path in (file, file.removeprefix("/usr"), f"/usr{file}"):
        found = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True, check=False).stdout
        if found:
            return _debian(found.partition(": ")[0].partition(",")[0])
    version = platform.python_version()
    return {
        "type": "application", "bom-ref": f"cpython@{version}", "name": "cpython", "version": version,
        "purl": f"pkg:generic/cpython@{version}", "cpe": f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*",
    }  # fmt: skip


def _debian(name: str) -> dict[str, Any]:
    told = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={FIELDS}", name], capture_output=True, text=True, check=True
    )
    package, version, architecture, source, source_version = told.stdout.split("\t")
    release = platform.freedesktop_os_release()
    at = urllib.parse.quote(version, safe=":~")  # as the purl specification has it
    purl = f"pkg:deb/{release['ID']}/{package}@{at}?arch={architecture}&distro={release['ID']}-{release['VERSION_ID']}"
    return {
        "type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl,
        "properties": [{"name": "debian:source", "value": f"{source} {source_version}"}],
    }  # fmt: skip


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
