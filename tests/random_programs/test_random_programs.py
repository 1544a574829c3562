"""Random programs mean the same to every executor as to a reference in NumPy."""

import pytest

from tests.random_programs.cases import NUM_SHARDS, run_seed, seeds_of
from tests.random_programs.examples import EXAMPLES
from tests.random_programs.execution import check


@pytest.mark.whole
@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_random_programs_give_what_the_reference_gives(shard, is_full):
    for seed in seeds_of(shard, is_full=is_full):
        run_seed(seed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_chosen_program_gives_what_the_reference_gives(name):
    check(EXAMPLES[name])
