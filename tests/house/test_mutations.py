"""The places that `make mutations` breaks exist, each once, so that none is skipped silently."""

from __future__ import annotations

import pytest

from benchmarks.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_the_place_of_a_mutation_is_there_once_and_so_is_its_test(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.new != mutation.old
    file, _, name = mutation.test.partition("::")
    assert f"def {name}" in (ROOT / file).read_text()
