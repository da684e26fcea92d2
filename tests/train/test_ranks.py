"""Two ranks, wrapped by DDP or sharded by FSDP2, train by the objective to the losses of one process."""

import itertools

import pytest

from start_ranks import ALL, start_ranks
from training_ranks import RUNS, SAMPLE

pytestmark = pytest.mark.slow  # three more processes to start
SETTINGS = ["adaptive, checkpointed; float64", "split, direct; float64", "adaptive, checkpointed; float32"]
CASES = [f"{wrapper}; {rest}" for wrapper, rest in itertools.product(["DDP", "FSDP2, parts", "FSDP2"], SETTINGS)]
if not ALL:
    CASES = [f"{wrapper}; {solver}; float64" for wrapper, solver in SAMPLE]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank of `training_ranks.py` found."""
    return start_ranks("training_ranks.py", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES)
def test_wrapped_models_train_as_one_process_does(ranks, case):
    for found in ranks:
        gap, fall = found[case]
        assert gap < (1e-10 if "float64" in case else 1e-5) and fall > 0.1


@pytest.mark.parametrize("name", list(RUNS)[: None if ALL else 2])
def test_runs_on_two_ranks_are_those_of_one_process_and_go_on_on_either(ranks, name):
    """All updates on two, on two and then on one, on one and then on two: the same losses."""
    together, to_one, to_two = ranks[0]["runs"][name]
    assert max(together, to_one, to_two) < 1e-5


@pytest.mark.parametrize("name", list(RUNS)[: None if ALL else 2])
def test_a_batch_that_one_rank_cannot_solve_is_skipped_by_all(ranks, name):
    for found in ranks:
        assert found["skipped"][name] == [False, True, False]


def test_a_rank_of_two_never_holds_all_weights(ranks):
    """Its own half, and those of one part of the flow at one depth; bytes of all tensors are counted."""
    for found in ranks:
        assert found["memory"] < 0.7


def test_every_case_is_looked_at(ranks):
    for found in ranks:
        assert len(found) == (9 if ALL else 2) + 3 and set(found) == {*CASES, "runs", "memory", "skipped"}
