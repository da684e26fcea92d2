"""Saving and loading: the same model again, and nothing else."""

import json

import pytest
import torch

import continua
from continua.model import ContinuousTransformer, Flow, Layers, Part, decode, encode, load, save
from continua.model.storage import hash_model
from continua.operators import AbstractPointwise, FeedForward, NoTheta
from continua.solve import BogackiShampine, Checkpointed, Fixed, PerSequence, Solver
from continua.train.trained import load as load_run_or_model
from models import adaptive_model
from parity import run, shaken, tokens_and_padding
from registries import VOCABULARY, all_presets

LAYERS = Layers(2, width=8, heads=2, hidden=12, dropout=0.1)
TOKENS, PRESENT = tokens_and_padding(VOCABULARY, 7)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(1)
    model = adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2)
    return save(model, tmp_path / "a" / "model")


def rewritten(folder, change):
    recipe = json.loads((folder / "model.json").read_text())
    change(recipe)
    recipe["sha256"] = hash_model((folder / "model.safetensors").read_bytes(), recipe)
    (folder / "model.json").write_text(json.dumps(recipe))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["32", "64"])
@pytest.mark.parametrize("name", [*all_presets, "default"])
def test_round_trip(tmp_path, name, dtype):
    torch.manual_seed(1)
    if name == "default":
        model = adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2)
    else:
        model = all_presets[name](LAYERS)
    shaken(model.to(dtype))
    other = load(save(model, tmp_path))
    assert type(other) is type(model) and {p.dtype for p in other.parameters()} == {dtype}
    assert torch.equal(run(other.eval(), TOKENS, PRESENT), run(model.eval(), TOKENS, PRESENT))
    # In training mode too: dropout is part of what was saved.
    draws = [run(m.train(), TOKENS, PRESENT, generator=torch.Generator().manual_seed(1)) for m in (model, other)]
    assert torch.equal(*draws)
    assert encode(other) == encode(model)


def test_signals_round_trip(tmp_path):
    model = adaptive_model(width=8, outputs=5, features=3, heads=2, causal=True)
    values, times = torch.randn(2, 6, 3), torch.rand(2, 6).sort(-1).values
    assert torch.equal(load(save(model, tmp_path))(values, times), model(values, times))


def test_solver_and_gradient_come_along(tmp_path):
    model = adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2)
    chosen = {"solver": Solver(BogackiShampine(), PerSequence(1e-3, 1e-5)), "gradient": Checkpointed(0.5, 2)}
    other = load(save(model.at(**chosen), tmp_path))
    assert (other.solver, other.gradient) == (chosen["solver"], chosen["gradient"])
    # Saved over the first one: the folder holds the last model.
    assert load(save(model.at(steps=3), tmp_path)).solver.controller == Fixed(3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.json", "model.safetensors"]


def test_tables_that_are_one_parameter_are_one_again(tmp_path):
    model = all_presets["gpt, tied"](LAYERS)
    other = load(save(model, tmp_path))
    assert other.readout.linear.weight is other.embedding.table


def test_a_field_that_serves_twice_serves_twice_again(tmp_path):
    model = adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2)
    part = model.flow.parts[1]
    twice = ContinuousTransformer(model.embedding, Flow([part, Part(part.operator, part.field)]), model.readout)
    other = load(save(twice, tmp_path))
    ids = [{id(p) for p in part.parameters()} for part in other.flow.parts]
    assert ids[0] == ids[1]
    assert torch.equal(other(TOKENS), twice(TOKENS))


def test_the_public_names_are_these():
    assert continua.save is save and continua.load is load_run_or_model


def test_a_damaged_file_is_refused(saved):
    file = saved / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"folder = .*does not match its hash.*Copy the folder again"):
        load(saved)


def test_a_flipped_bit_anywhere_in_a_recipe_is_refused_or_no_matter(saved):
    """In a number it would be another model with the same values; between words it may change nothing."""
    file, before = saved / "model.json", repr(load(saved))
    content = file.read_bytes()
    for place in range(0, len(content), 17):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert repr(load(saved)) == before, place
        except ValueError as refused:
            assert "\n" not in str(refused), place


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', "\x00\xff"], ids=repr)
def test_a_damaged_recipe_is_refused(saved, content):
    (saved / "model.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"folder = .*model.json is not what continua.save writes"):
        load(saved)


def test_another_format_is_refused(saved):
    rewritten(saved, lambda recipe: recipe.update(format=99))
    with pytest.raises(ValueError, match=r"folder = .*its format is 99.*reads format 3"):
        load(saved)


def test_a_recipe_of_another_version_is_refused(saved):
    rewritten(saved, lambda recipe: recipe["model"]["arguments"].update(colour="red"))
    with pytest.raises(ValueError, match=r"folder = .*does not fit this version.*colour"):
        load(saved)
    rewritten(saved, lambda recipe: recipe["model"].pop("arguments"))
    with pytest.raises(ValueError, match=r"folder = .*does not fit this version"):
        load(saved)


@pytest.mark.parametrize("missing", ["model.json", "model.safetensors"])
def test_another_folder_is_refused(saved, missing, tmp_path):
    (saved / missing).unlink()
    with pytest.raises(ValueError, match=rf"folder = .*there is no {missing} in it.*continua.save"):
        load(saved)
    with pytest.raises(ValueError, match=r"folder = .*there is no such folder"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "pathlib:Path",
        "continuation:Model",
        "continua.model.storage:Path",  # a stranger under a name of the house
        "continua.model.storage:json",
        "continua.model.storage:load",
        "continua.model.transformer:Nobody",
        "continua.model.nowhere:Nobody",
        "continua.cli.main:Anything",  # not what models are made of
    ],
)
def test_a_foreign_class_is_refused(saved, name):
    rewritten(saved, lambda recipe: recipe["model"].update({"class": name}))
    with pytest.raises(ValueError, match=rf"class = '{name}'"):
        load(saved)


class Stranger(AbstractPointwise):
    """An operator that is not of the house."""

    def spec(self, width):
        return NoTheta()

    def act(self, theta, points):
        return -points


def test_what_could_not_be_loaded_is_not_saved(tmp_path, unchecked):
    model = adaptive_model(width=8, outputs=5, vocabulary=VOCABULARY, heads=2)
    model.flow.parts[0].operator = Stranger()
    with pytest.raises(ValueError, match=r"model = .*Stranger.*load_state_dict"):
        save(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"model = 'dict': this is no Module.*estimator has one as \.model_"):
        save({}, tmp_path / "m")


def test_recipes_are_plain_data():
    operator = FeedForward(3)
    assert decode(json.loads(json.dumps(encode(operator)))) == operator
    assert decode(encode((1, 2.5, None, "x", True))) == (1, 2.5, None, "x", True)
