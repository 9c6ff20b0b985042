#!/usr/bin/env python3
"""Under which licences the crates are that are linked into this project's programs.

    scripts/licences.py summary PACKAGE...   a line for each crate: name, version, licence, where it is from
    scripts/licences.py texts PACKAGE...     the texts of the licences, as each crate brings them

PACKAGE is one of the workspace that is linked (dafs-cli). The crates are read where cargo keeps their sources;
what is not there yet cargo gets. A crate without a licence, or that brings no text and whose licence is none that
packaging/licences has, is an error.
"""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STARTS = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE", "NOTICE")
RULE = "=" * 78


def cargo(*arguments):
    """What cargo says."""
    command = [os.environ.get("CARGO", "cargo"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def linked(packages):
    """Names and versions of what is linked into these packages, without those of the workspace."""
    chosen = [word for package in packages for word in ("-p", package)]
    lines = cargo("tree", "--locked", *chosen, "-e", "normal,no-proc-macro", "--prefix", "none", "-f", "{p}")
    for line in sorted(set(lines.splitlines())):
        words = line.split()
        # Of the workspace: with its directory behind the version.
        if len(words) >= 2 and not any(word.startswith("(/") for word in words):
            yield words[0], words[1].removeprefix("v")


def crates(packages):
    """The crates that are linked, as cargo's metadata has them."""
    known = {}
    # Of this platform only: nobody who builds here has the crates of others.
    host = next(line.split()[1] for line in cargo("-vV").splitlines() if line.startswith("host: "))
    metadata = cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", host)
    for crate in json.loads(metadata)["packages"]:
        known[crate["name"], crate["version"]] = crate
    for key in sorted(set(linked(packages))):
        crate = known[key]
        if not crate["license"]:
            sys.exit(f"licences: {key[0]} {key[1]}: no licence in its Cargo.toml")
        yield crate


def own_texts(crate):
    """Names and texts of the licence files that a crate brings."""
    directory = os.path.dirname(crate["manifest_path"])
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if name.upper().startswith(STARTS) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield name, file.read().strip() + "\n"


def common_texts(crate):
    """For a crate that brings none: the usual text of a licence that it may be used under."""
    for licence in crate["license"].replace("/", " OR ").split(" OR "):
        path = os.path.join(ROOT, "packaging", "licences", licence.strip())
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                yield licence.strip(), file.read().strip() + "\n"
            return
    sys.exit(f"licences: {crate['name']}: brings no text, and packaging/licences has none of {crate['license']}")


def summary(packages):
    """A line for each crate."""
    for crate in crates(packages):
        where = crate["repository"] or crate["homepage"] or ""
        print(f"{crate['name']} {crate['version']}: {crate['license']}; {where}".rstrip("; "))


def texts(packages):
    """Each text once, below the crates that bring it."""
    users = {}
    for crate in crates(packages):
        for _, text in list(own_texts(crate)) or list(common_texts(crate)):
            users.setdefault(text, []).append(f"{crate['name']} {crate['version']}")
    for text, names in sorted(users.items(), key=lambda item: item[1]):
        print(f"{RULE}\n{', '.join(names)}\n{RULE}\n\n{text}")


def main():
    """By the command line."""
    does = {"summary": summary, "texts": texts}
    if len(sys.argv) < 3 or sys.argv[1] not in does:
        sys.exit(__doc__)
    does[sys.argv[1]](sys.argv[2:])


main()
