"""Two ranks, sharded by FSDP2: the same steps and the same parameters as one process on the whole batch."""

import pytest

from start_ranks import start_ranks

pytestmark = pytest.mark.faults  # three more processes, half a minute; `test_ranks` has a sample of it in every run


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank of `ranks.py` found."""
    return start_ranks("ranks.py", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", ["Direct", "Checkpointed", "Checkpointed, resharded"])
def test_a_sharded_model_trains_as_one_process_does(ranks, name):
    for found in ranks:
        assert found[name]["gap"] < 1e-9
        assert found[name]["grids"] < 1e-9


def test_the_backward_solve_takes_the_same_steps_on_every_rank(ranks):
    """It ends at all, and agrees to ten times its tolerance, the parameters as well as the grids that they lead to.

    Not to rounding: costates are scaled by the largest of each rank, so the way back has other steps than alone.
    """
    for found in ranks:
        assert found["Backsolve"]["gap"] < 1e-5
        assert found["Backsolve"]["grids"] < 1e-5


PARTS = [
    "parts, Direct",
    "parts, Checkpointed",
    "parts, Checkpointed, fixed steps",
    "fields, Direct",
    "fields, Checkpointed",
]


@pytest.mark.parametrize("name", PARTS)
def test_parts_sharded_on_their_own_train_as_one_process_does(ranks, name):
    for found in ranks:
        assert found[name]["gap"] < 1e-9
        assert found[name]["losses"] < 1e-10


def test_parts_sharded_on_their_own_are_refused_where_gradients_would_be_lost(ranks):
    for found in ranks:
        refusal = found["parts, Backsolve"]["refused"]
        assert "a part of the flow is sharded on its own, where Backsolve loses gradients" in refusal
        assert "fully_shard(model)" in refusal and "Checkpointed() or Direct()" in refusal
