"""What the stand-in keeps on disk: one folder a repo.

    <root>/datasets/ORG/NAME/repo.json         private, branches, tags, pull requests
    <root>/datasets/ORG/NAME/commits/<oid>     parent, title, date and the whole tree, as JSON
    <root>/datasets/ORG/NAME/blobs/<sha1>      contents of regular files, by git's hash
    <root>/datasets/ORG/NAME/lfs/<sha256>      contents of large files
    <root>/datasets/ORG/NAME/parts/<sha256>.N  parts of a large file that is not complete

A repo's methods are called with the server's lock held, except `write_large`, which only adds a
file under the hash of its content.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["REPO_PATH", "ConflictError", "Repo", "git_hash", "now"]

REPO_PATH = r"/(models|datasets|spaces)/([^/]+/[^/]+)"

Entry = dict[str, Any]
Tree = dict[str, Entry]


class ConflictError(Exception):
    """The state is another one than the request needs."""


def git_hash(content: bytes) -> str:
    """Return the hash that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def now() -> str:
    """Return the time as the Hub writes it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.000Z}"


class Repo:
    """One repo on disk."""

    def __init__(self, folder: Path, kind: str, name: str) -> None:
        self.folder = folder
        self.kind = kind
        self.name = name
        self.gated = ""
        self._trees: dict[str, dict[str, Any]] = {}
        self._state: dict[str, Any] = {}

    @classmethod
    def create(cls, folder: Path, kind: str, name: str, *, private: bool) -> Repo:
        """Make a repo with one commit that holds ``.gitattributes``, as the Hub does."""
        repo = cls(folder, kind, name)
        for part in ("commits", "blobs", "lfs", "parts"):
            (folder / part).mkdir(parents=True)
        repo._state = {"private": private, "branches": {}, "tags": {}, "pulls": []}
        attributes = repo.add_regular(b"*.parquet filter=lfs diff=lfs merge=lfs -text\n")
        repo.commit("main", {".gitattributes": attributes}, "initial commit")
        return repo

    @classmethod
    def reopen(cls, folder: Path, kind: str, name: str) -> Repo:
        """Return a repo that an earlier stand-in kept."""
        repo = cls(folder, kind, name)
        repo._state = json.loads((folder / "repo.json").read_bytes())
        return repo

    @property
    def private(self) -> bool:
        return bool(self._state["private"])

    @property
    def branches(self) -> dict[str, str]:
        found: dict[str, str] = self._state["branches"]
        return found

    @property
    def tags(self) -> dict[str, str]:
        found: dict[str, str] = self._state["tags"]
        return found

    @property
    def pulls(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._state["pulls"]
        return found

    def save(self) -> None:
        """Write the references; the commits that they name are there already."""
        (self.folder / "repo.json").write_text(json.dumps(self._state))

    # --- references and commits -------------------------------------------------------------

    def resolve(self, revision: str) -> str | None:
        """Return the commit that a branch, tag, pull request or (shortened) hash names."""
        short = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        for names in (self.branches, self.tags):
            if short in names:
                return names[short]
        for pull in self.pulls:
            if revision == f"refs/pr/{pull['num']}":
                return str(pull["head"])
        if len(revision) >= 7 and set(revision) <= set("0123456789abcdef"):
            found = [path.name for path in (self.folder / "commits").glob(f"{revision}*")]
            return found[0] if len(found) == 1 else None
        return None

    def read_commit(self, oid: str) -> dict[str, Any]:
        """Return a commit's parent, title, date and tree."""
        if oid not in self._trees:
            self._trees[oid] = json.loads((self.folder / "commits" / oid).read_bytes())
        return self._trees[oid]

    def tree(self, oid: str) -> Tree:
        """Return a commit's files; not to be changed."""
        tree: Tree = self.read_commit(oid)["files"]
        return tree

    def history(self, oid: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give a commit and its ancestors."""
        while oid:
            commit = self.read_commit(oid)
            yield oid, commit
            oid = commit["parent"]

    def write_commit(self, tree: Tree, title: str, parent: str | None) -> str:
        """Write a commit that no reference names yet, and return its hash."""
        body = {"parent": parent, "title": title, "date": now(), "files": tree}
        count = len(list((self.folder / "commits").iterdir()))
        oid = hashlib.sha1(json.dumps([count, body], sort_keys=True).encode()).hexdigest()
        (self.folder / "commits" / oid).write_text(json.dumps(body))
        return oid

    def commit(self, branch: str, tree: Tree, title: str) -> str:
        """Move a branch to a new commit."""
        oid = self.write_commit(tree, title, self.branches.get(branch))
        self.branches[branch] = oid
        self.save()
        return oid

    # --- contents ----------------------------------------------------------------------------

    def add_regular(self, content: bytes) -> Entry:
        """Keep a regular file's content and return its tree entry."""
        oid = git_hash(content)
        (self.folder / "blobs" / oid).write_bytes(content)
        return {"oid": oid, "size": len(content)}

    def add_large(self, content: bytes) -> Entry:
        """Keep a large file's content and return its tree entry."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.large(sha256).write_bytes(content)
        return self.large_entry(sha256, len(content))

    def large_entry(self, sha256: str, size: int, xet: str | None = None) -> Entry:
        """Return the tree entry of a large file: a pointer, as git sees it."""
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        entry: Entry = {"oid": git_hash(pointer.encode()), "size": size, "lfs": sha256}
        return entry if xet is None else {**entry, "xet": xet}

    def large(self, sha256: str) -> Path:
        """The path of a large file's content."""
        return self.folder / "lfs" / sha256

    def part(self, sha256: str, number: int) -> Path:
        """The path of one part of a large file."""
        return self.folder / "parts" / f"{sha256}.{number}"

    def keep_large(self, sha256: str, finished: Path) -> None:
        """Take over a file, if it has the hash that it is sent under.

        Raises:
            ConflictError: It has another.
        """
        with finished.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise ConflictError("the content has another hash")
        finished.replace(self.large(sha256))

    def complete(self, sha256: str, numbers: list[int]) -> None:
        """Join the parts of a large file."""
        joined = self.scratch()
        with joined.open("wb") as out:
            for number in numbers:
                with self.part(sha256, number).open("rb") as part:
                    shutil.copyfileobj(part, out)
        self.keep_large(sha256, joined)
        for number in numbers:
            self.part(sha256, number).unlink()

    def scratch(self) -> Path:
        """Return a new empty file on the store's file system."""
        descriptor, name = tempfile.mkstemp(dir=self.folder / "parts")
        os.close(descriptor)
        return Path(name)

    def content(self, entry: Mapping[str, Any]) -> Path | None:
        """Return where a file's content lies; None if it came through Xet alone."""
        large = entry.get("lfs")
        path = self.large(large) if large else self.folder / "blobs" / entry["oid"]
        return path if path.exists() else None

    # --- pull requests -----------------------------------------------------------------------

    def open_pull(self, title: str, author: str, base: str) -> dict[str, Any]:
        """Open a pull request against ``main``, at a commit."""
        pull = {
            "num": len(self.pulls) + 1, "title": title, "author": author, "status": "draft",
            "base": base, "head": base, "createdAt": now(), "merged": None,
        }  # fmt: skip
        self.pulls.append(pull)
        self.save()
        return pull

    def merge(self, pull: dict[str, Any]) -> str:
        """Bring a pull request's changes to ``main`` as one commit.

        Raises:
            ConflictError: ``main`` changed the same files since, or it is not open.
        """
        if pull["status"] != "open":
            raise ConflictError("This pull request is not open.")
        base, ours = self.tree(pull["base"]), self.tree(self.branches["main"])
        theirs = self.tree(pull["head"])
        merged = dict(ours)
        for path in sorted(base.keys() | theirs.keys()):
            before, after = base.get(path), theirs.get(path)
            if before == after:
                continue
            if ours.get(path) not in (before, after):
                raise ConflictError(f"{path} changed on both sides.")
            merged.pop(path, None)
            if after is not None:
                merged[path] = after
        pull["merged"] = self.commit("main", merged, pull["title"])
        pull["status"] = "merged"
        self.save()
        return str(pull["merged"])
