"""Which papers a model owes its parts to."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from continua.core.arguments import arguments_of
from continua.core.errors import reject
from continua.runs import Reference


def citation(*used: Any) -> list[Reference]:
    """References for what is actually used: `citation(model)`, or `citation(model, optimiser, objective)`.

    Everything inside is looked at - fields, operators, norms, stepper, control, gradient, estimators - and every part
    that has a source in the literature names it. Each reference says which parts use it; they come by their keys, first
    author and year.
    """
    if not used:
        reject("used", (), "nothing is used, and nothing to be cited", "Pass a model: continua.citation(model).")
    for thing in used:
        if isinstance(thing, type):
            why = "this is a class, and what it is made of is known only when it is built"
            reject("used", thing.__name__, why, "Pass the built object: continua.citation(model).")
    names = sorted({type(part).__name__ for thing in used for part in _parts(thing, set())})
    uses = {reference: ", ".join(name for name in names if name in users) for reference, users in LITERATURE.items()}
    found = [dataclasses.replace(reference, uses=using) for reference, using in uses.items() if using]
    return sorted(found, key=lambda reference: reference.key)


def _parts(thing: Any, seen: set[int]) -> Iterator[Any]:
    """A thing and all that it is made of, each once."""
    if id(thing) in seen or thing is None or isinstance(thing, str | int | float | bool):
        return
    seen.add(id(thing))
    if isinstance(thing, Mapping):
        inner = list(thing.values())
    elif isinstance(thing, list | tuple | nn.ModuleList):
        inner = list(thing)
    else:
        yield thing
        inner = []
        if isinstance(thing, Optimizer):
            inner = list(getattr(thing, "members", {}).values())
        elif isinstance(thing, nn.Module):
            made = arguments_of(thing) if type(thing).__module__.startswith("continua.") else {}
            inner = [*made.values(), *thing.children()]
        elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            inner = [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    for part in inner:
        yield from _parts(part, seen)


LITERATURE: dict[Reference, tuple[str, ...]] = {
    Reference("absil2012", "P.-A. Absil, J. Malick", 2012, "Projection-like retractions on matrix manifolds",
              "SIAM Journal on Optimization 22, 135-158"): ("Projected",),
    Reference("ba2016", "J. L. Ba, J. R. Kiros, G. E. Hinton", 2016, "Layer normalization",
              "arXiv:1607.06450"): ("LayerNorm",),
    Reference("bogacki1989", "P. Bogacki, L. F. Shampine", 1989, "A 3(2) pair of Runge-Kutta formulas",
              "Applied Mathematics Letters 2, 321-325"): ("BogackiShampine",),
    Reference("chen2016", "T. Chen, B. Xu, C. Zhang, C. Guestrin", 2016,
              "Training deep nets with sublinear memory cost", "arXiv:1604.06174"): ("Checkpointed",),
    Reference("chen2018", "R. T. Q. Chen, Y. Rubanova, J. Bettencourt, D. Duvenaud", 2018,
              "Neural ordinary differential equations",
              "Advances in Neural Information Processing Systems 31"): ("Flow", "Backsolve"),
    Reference("dormand1980", "J. R. Dormand, P. J. Prince", 1980, "A family of embedded Runge-Kutta formulae",
              "Journal of Computational and Applied Mathematics 6, 19-26"): ("DormandPrince",),
    Reference("finlay2020", "C. Finlay, J.-H. Jacobsen, L. Nurbekyan, A. M. Oberman", 2020,
              "How to train your neural ODE: the world of Jacobian and kinetic regularization",
              "International Conference on Machine Learning"): ("KineticEnergy", "JacobianFrobenius"),
    Reference("geshkovski2023", "B. Geshkovski, C. Letrouit, Y. Polyanskiy, P. Rigollet", 2023,
              "A mathematical perspective on Transformers", "arXiv:2312.10794"): ("Attention", "Sphere"),
    Reference("gustafsson1994", "K. Gustafsson", 1994,
              "Control-theoretic techniques for stepsize selection in implicit Runge-Kutta methods",
              "ACM Transactions on Mathematical Software 20, 496-517"): ("Adaptive", "PerSequence"),
    Reference("ha2017", "D. Ha, A. Dai, Q. V. Le", 2017, "HyperNetworks",
              "International Conference on Learning Representations"): ("Hypernetwork",),
    Reference("heun1900", "K. Heun", 1900, "Neue Methoden zur approximativen Integration der Differentialgleichungen "
              "einer unabhängigen Veränderlichen", "Zeitschrift für Mathematik und Physik 45, 23-38"): ("Heun",),
    Reference("hutchinson1989", "M. F. Hutchinson", 1989, "A stochastic estimator of the trace of the influence matrix "
              "for Laplacian smoothing splines",
              "Communications in Statistics - Simulation and Computation 18, 1059-1076"): ("JacobianFrobenius",),
    Reference("kingma2015", "D. P. Kingma, J. Ba", 2015, "Adam: a method for stochastic optimization",
              "International Conference on Learning Representations"): ("Adam", "AdamW", "BlockwiseAdamW"),
    Reference("kutta1901", "W. Kutta", 1901,
              "Beitrag zur näherungsweisen Integration totaler Differentialgleichungen",
              "Zeitschrift für Mathematik und Physik 46, 435-453"): ("RK4",),
    Reference("li2018", "Q. Li, L. Chen, C. Tai, W. E", 2018, "Maximum principle based algorithms for deep learning",
              "Journal of Machine Learning Research 18, 1-29"): ("Objective", "SuccessiveApproximations"),
    Reference("li2021", "Z. Li, N. Kovachki, K. Azizzadenesheli, B. Liu, K. Bhattacharya, A. Stuart, A. Anandkumar",
              2021, "Fourier neural operator for parametric partial differential equations",
              "International Conference on Learning Representations"): ("Spectral",),
    Reference("loshchilov2019", "I. Loshchilov, F. Hutter", 2019, "Decoupled weight decay regularization",
              "International Conference on Learning Representations"): ("AdamW", "BlockwiseAdamW"),
    Reference("owen1997", "A. B. Owen", 1997, "Scrambled net variance for integrals of smooth functions",
              "The Annals of Statistics 25, 1541-1562"): ("Sobol",),
    Reference("rhee2015", "C.-H. Rhee, P. W. Glynn", 2015,
              "Unbiased estimation with square root convergence for SDE models",
              "Operations Research 63, 1026-1043"): ("Debiased", "DebiasedObjective"),
    Reference("sander2022", "M. E. Sander, P. Ablin, M. Blondel, G. Peyré", 2022,
              "Sinkformers: Transformers with doubly stochastic attention",
              "International Conference on Artificial Intelligence and Statistics"): ("Attention",),
    Reference("srivastava2014", "N. Srivastava, G. Hinton, A. Krizhevsky, I. Sutskever, R. Salakhutdinov", 2014,
              "Dropout: a simple way to prevent neural networks from overfitting",
              "Journal of Machine Learning Research 15, 1929-1958"): ("Dropout",),
    Reference("strang1968", "G. Strang", 1968, "On the construction and comparison of difference schemes",
              "SIAM Journal on Numerical Analysis 5, 506-517"): ("Strang",),
    Reference("su2021", "J. Su, Y. Lu, S. Pan, A. Murtadha, B. Wen, Y. Liu", 2021,
              "RoFormer: enhanced Transformer with rotary position embedding", "arXiv:2104.09864"): ("Rotary",),
    Reference("tancik2020", "M. Tancik, P. P. Srinivasan, B. Mildenhall, S. Fridovich-Keil, N. Raghavan, U. Singhal, "
              "R. Ramamoorthi, J. T. Barron, R. Ng", 2020,
              "Fourier features let networks learn high frequency functions in low dimensional domains",
              "Advances in Neural Information Processing Systems 33"): ("FourierPositions",),
    Reference("trotter1959", "H. F. Trotter", 1959, "On the product of semi-groups of operators",
              "Proceedings of the American Mathematical Society 10, 545-551"): ("LieTrotter",),
    Reference("tsitouras2011", "C. Tsitouras", 2011, "Runge-Kutta pairs of order 5(4) satisfying only the first column "
              "simplifying assumption", "Computers & Mathematics with Applications 62, 770-775"): ("Tsitouras",),
    Reference("vaswani2017", "A. Vaswani, N. Shazeer, N. Parmar, J. Uszkoreit, L. Jones, A. N. Gomez, L. Kaiser, "
              "I. Polosukhin", 2017, "Attention is all you need",
              "Advances in Neural Information Processing Systems 30"): ("Attention", "SinusoidalPositions"),
    Reference("vyas2024", "N. Vyas, D. Morwani, R. Zhao, M. Kwun, I. Shapira, D. Brandfonbrener, L. Janson, S. Kakade",
              2024, "SOAP: improving and stabilizing Shampoo using Adam", "arXiv:2409.11321"): ("SOAP",),
    Reference("xiong2020", "R. Xiong, Y. Yang, D. He, K. Zheng, S. Zheng, C. Xing, H. Zhang, Y. Lan, L. Wang, "
              "T.-Y. Liu", 2020, "On layer normalization in the Transformer architecture",
              "International Conference on Machine Learning"): ("PreNorm",),
    Reference("xiong2021", "Y. Xiong, Z. Zeng, R. Chakraborty, M. Tan, G. Fung, Y. Li, V. Singh", 2021,
              "Nyströmformer: a Nyström-based algorithm for approximating self-attention",
              "AAAI Conference on Artificial Intelligence"): ("Nystrom",),
    Reference("zhang2019", "B. Zhang, R. Sennrich", 2019, "Root mean square layer normalization",
              "Advances in Neural Information Processing Systems 32"): ("RMSNorm",),
}  # fmt: skip
"""Each reference with the names of the classes that it is the source of.

Names instead of classes, so that rooms above this one (running costs, objectives) and torch's optimisers have their
place in the one table; a test holds that every name exists.
"""
