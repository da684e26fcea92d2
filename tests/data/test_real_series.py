"""Real series with a trend and with a season: what the linear reference reaches on the test, beside simpler ones."""

import warnings

import pytest

from continua.data import Csv, Split, series_errors

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from statsmodels import datasets


def weekly_co2(file):
    """Carbon dioxide at Mauna Loa, 1958 to 2001: a trend and a season, 59 weeks missing; as pandas writes it."""
    datasets.co2.load_pandas().data.to_csv(file)


def quarterly_gdp(file):
    """The product of the United States, 1959 to 2009: a trend."""
    table = datasets.macrodata.load_pandas().data
    rows = (f"{int(row.year)}Q{int(row.quarter)},{row.realgdp}" for row in table.itertuples())
    file.write_text("\n".join(["quarter,gdp", *rows]))


# of the product's quarters there are too few to learn more than the interpolant from, and its last years are rougher
@pytest.mark.parametrize(("write", "share", "ahead"), [(weekly_co2, 0.97, 0.6), (quarterly_gdp, 1.0, 0.65)])
def test_the_linear_reference_is_not_above_interpolation_and_ridge(tmp_path, write, share, ahead, unchecked):
    write(tmp_path / "own.csv")
    found = Csv(tmp_path / "own.csv").references(Split.TEST)
    errors = {
        name: {part: float(each.mean()) for part, each in series_errors(*pair).items()} for name, pair in found.items()
    }
    reference, naive, ridge = (
        errors[name]
        for name in ("linear reference, network off", "linear interpolation, last value", "ridge on differences")
    )
    assert reference["squared error between"] <= share * naive["squared error between"]
    assert reference["squared error ahead"] <= ridge["squared error ahead"] < ahead * naive["squared error ahead"]
