"""The releases of frameworks with which the integrations are tested."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Optional

# For each distribution, the oldest and the newest release with which `make test-frameworks-matrix` trains. What tests
# install and docs/frameworks.md are made from this table by scripts/framework-releases.
TESTED: dict[str, tuple[str, str]] = {
    "torch": ("2.14.1", "2.15.0"),
    "deepspeed": ("0.19.7", "0.19.8"),
    "megatron-core": ("0.19.0", "0.19.2"),
    "megatron-bridge": ("0.6.0", "0.6.2"),
    "torchtitan": ("0.2.2", "0.3.0"),
    "nanotron": ("0.4", "0.4"),
    "lightning": ("2.6.5", "2.6.6"),
    "pytorch-lightning": ("2.6.5", "2.6.6"),
    "transformers": ("5.23.0", "5.24.0"),
    "accelerate": ("1.14.0", "1.15.0"),
}


def installed(distribution: str) -> Optional[str]:
    """The installed release of a framework; None if there is none, or it does not tell its
    release."""
    try:
        return metadata.version(distribution)
    except Exception:
        # Asked in a training loop, too.
        return None


def is_tested(distribution: str, release: str) -> bool:
    """Whether a release is within the tested range."""
    oldest, newest = TESTED[distribution]
    return _parts(oldest) <= _parts(release) <= _parts(newest)


def in_words(distribution: str) -> str:
    """The installed and the tested releases of a framework: ``lightning 2.9.0 is untested; tested:
    2.6.5 to 2.6.6``."""
    oldest, newest = TESTED[distribution]
    tested = oldest if oldest == newest else f"{oldest} to {newest}"
    release = installed(distribution)
    if release is None:
        return f"{distribution} is not installed; tested: {tested}"
    return f"{distribution} {release}{'' if is_tested(distribution, release) else ' is untested'}; tested: {tested}"


def _parts(release: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", release)
    parts = [int(part) for part in found[0].split(".")] if found else []
    return tuple([*parts, 0, 0, 0][:3])


if __name__ == "__main__":
    print(*map(in_words, TESTED), sep="\n")
