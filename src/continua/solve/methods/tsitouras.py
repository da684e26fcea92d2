"""The Tsitouras pair of orders 5 and 4."""

import dataclasses

from continua.solve.methods.runge_kutta import AbstractRungeKutta, Tableau

_B = (
    0.09646076681806523,
    0.01,
    0.4798896504144996,
    1.379008574103742,
    -3.290069515436081,
    2.324710524099774,
)

_TABLEAU = Tableau(
    order=5,
    a=(
        (),
        (0.161,),
        (-0.008480655492356989, 0.335480655492357),
        (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
    ),
    b=_B,
    c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0),
    e=(
        0.00178001105222577714,
        0.0008164344596567469,
        -0.007880878010261995,
        0.1447110071732629,
        -0.5823571654525552,
        0.45808210592918697,
        -1 / 66,
    ),
    error_order=4,
    dense=(
        (1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216),
        (0.0, 0.1317, -0.2234, 0.1017),
        (0.0, 3.9302962368947516, -5.941033872131505, 2.490627285651252793),
        (0.0, -12.411077166933676, 30.338188630282318, -16.54810288924490272),
        (0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928122),
        (0.0, -27.896526289197286, 65.09189467479366, -34.87065786149660974),
        (0.0, 1.5, -4.0, 2.5),
    ),
)


@dataclasses.dataclass(frozen=True)
class Tsitouras(AbstractRungeKutta):
    """Six stages of order 5 with an embedded order 4 and an interpolant of order 4.

    Its error constants are smaller than those of Dormand-Prince.

    Ch. Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption, Comput.
    Math. Appl. 62 (2011), with the sign of the last error coefficient mended. The pair of diffrax's `Tsit5`.
    """

    @property
    def tableau(self) -> Tableau:
        return _TABLEAU
