"""The words for shapes, defined once.

A shape is a string of words, ``Float[Tensor, "batch tokens width"]``; the same word is the same size within one
call. The tests check every annotated function at run time.

| word | meaning |
|---|---|
| batch | sequences handled together |
| tokens | samples of one sequence (queries or keys) |
| queries | tokens that ask, where they are not the tokens that answer |
| width | size of one token's state, nodes x channels of the embedding axis |
| channels | numbers at one node of the embedding axis; the width where a state is a plain vector |
| heads | nodes of the head measure |
| key, value | size of one head's query/key and of its value |
| hidden | inner size of the feed-forward |
| depths | depths at which a trajectory is kept |
"""

from typing import TypeAlias

from jaxtyping import Bool, Float, Int
from torch import Tensor

Points: TypeAlias = Float[Tensor, "batch tokens width"]
Mass: TypeAlias = Float[Tensor, "batch tokens"]
Positions: TypeAlias = Float[Tensor, "batch tokens"]
Present: TypeAlias = Bool[Tensor, "batch tokens"]
DepthValue: TypeAlias = float | Float[Tensor, " batch"]
"""A depth is one number for the whole batch, or one for each sequence."""

__all__ = ["Bool", "DepthValue", "Float", "Int", "Mass", "Points", "Positions", "Present", "Tensor"]
