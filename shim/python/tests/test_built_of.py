"""A release is made of packages of its own commit: scripts/built-of, which make-release asks first."""

import os
import pathlib
import shutil
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).parents[3] / "scripts"


class Repository:
    def __init__(self, path):
        self.path = path
        (path / "scripts").mkdir()
        for script in ("built-of", "make-release"):
            shutil.copy(SCRIPTS / script, path / "scripts")
        (path / "Cargo.toml").write_text('version = "1.2.3"\n')
        (path / ".gitignore").write_text("target\n")
        self.run("git", "init", "--quiet")
        self.commits()

    def run(self, *command):
        # No configuration of whoever runs the tests.
        by = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {**os.environ, **by, "GIT_CONFIG_GLOBAL": os.devnull, "AARCH64": ""}
        return subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True)

    def commits(self):
        self.run("git", "add", "--all")
        assert self.run("git", "commit", "--quiet", "--allow-empty", "-m", "something").returncode == 0
        return self.run("git", "rev-parse", "HEAD").stdout.strip()

    def builds(self):
        for folder in ("debian", "rpm", "wheels"):
            (self.path / "target" / folder).mkdir(parents=True, exist_ok=True)
            assert self.run("scripts/built-of", "record", f"target/{folder}").returncode == 0

    def refusal(self):
        checked = self.run("scripts/built-of", "check", "target/debian", "target/rpm")
        return checked.stderr if checked.returncode else None


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


def test_packages_of_the_last_commit_are_released(repository):
    repository.builds()
    assert repository.refusal() is None


def test_packages_of_another_commit_are_no_release_and_both_commits_are_named(repository):
    of = repository.commits()
    repository.builds()
    now = repository.commits()
    made = repository.run("scripts/make-release", "KEY")
    assert (made.returncode, made.stderr) == (
        1,
        f"built-of: what is in target/debian was built of commit {of}, and the last commit is {now}; build it again\n",
    )


def test_packages_of_a_changed_tree_and_those_without_a_record_are_no_release(repository):
    of = repository.commits()
    (repository.path / "Cargo.toml").write_text('version = "1.2.4"\n')
    repository.builds()
    repository.run("git", "checkout", "--quiet", "Cargo.toml")
    assert f"was built of commit {of}-dirty, and the last commit is {of};" in repository.refusal()
    shutil.rmtree(repository.path / "target")
    assert f"was built of commit unknown, and the last commit is {of};" in repository.refusal()
