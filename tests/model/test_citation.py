"""Citations: what a model uses is cited, what it does not use is not, and every name in the table exists."""

import importlib
import pkgutil

import pytest
import torch

import continua
from continua.control import CrossEntropy, JacobianFrobenius, Objective
from continua.model import LITERATURE, citation
from continua.runs import Paper
from models import adaptive_model


def keys(*used) -> set[str]:
    return {paper.key for paper in citation(*used)}


@pytest.fixture(scope="module")
def model():
    return adaptive_model(width=16, outputs=3, features=1)


def test_the_default_model_cites_its_parts_and_no_others(model):
    found = {"chen2018", "vaswani2017", "geshkovski2023", "sander2022", "dormand1980", "gustafsson1994", "ba2016",
             "xiong2020", "chen2016"}  # fmt: skip
    assert keys(model) == found


def test_other_parts_have_other_sources(model):
    split = model.at(solver=continua.Solver(continua.Strang(continua.Midpoint()), continua.Fixed(4)))
    assert keys(split) - keys(model) == {"strang1968"} and keys(model) - keys(split) == {
        "dormand1980",
        "gustafsson1994",
    }
    assert keys(model.at(gradient=continua.Backsolve())).isdisjoint({"chen2016"})


def test_optimiser_and_objective_are_cited_where_they_are_passed(model):
    optimiser = torch.optim.AdamW(model.parameters())
    objective = Objective(CrossEntropy(), (JacobianFrobenius(),), (0.1,))
    assert keys(model, optimiser, objective) - keys(model) == {
        "loshchilov2019", "kingma2015", "hutchinson1989", "finlay2020", "li2018"
    }  # fmt: skip


def test_each_reference_says_what_it_is_used_for_and_they_come_by_author(model):
    found = citation(model)
    assert [r.key for r in found] == sorted(r.key for r in found)
    assert next(r for r in found if r.key == "vaswani2017").uses == "Attention, SinusoidalPositions"
    assert str(found[0]).startswith("J. L. Ba, J. R. Kiros, G. E. Hinton (2016). Layer normalization.")


def test_every_name_of_the_table_is_a_class_of_the_package_or_of_torch():
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(continua.__path__, "continua.")
               if not info.name.endswith("__main__")]  # fmt: skip
    known = {
        name for module in (*modules, torch.optim) for name, thing in vars(module).items() if isinstance(thing, type)
    }
    named = {name for users in LITERATURE.values() for name in users}
    assert named - known == set()
    keyed = [paper.key for paper in LITERATURE]
    assert len(set(keyed)) == len(keyed)


def test_papers_come_back_from_plain_data():
    paper = next(iter(LITERATURE))
    assert Paper(**paper.plain()) == paper


def test_nothing_used_is_a_mistake():
    with pytest.raises(ValueError, match=r"^used = "):
        citation()


def test_a_class_is_not_yet_made_of_anything():
    with pytest.raises(ValueError, match=r"used = 'Linear': this is a class.*continua\.citation\(model\)"):
        continua.citation(torch.nn.Linear)
