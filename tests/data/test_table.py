"""Tables: columns by name, scaled by what is trained on alone; the ratings; each thing that cannot be read by name."""

import gzip
import re

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from jaxfl import data
from jaxfl.data.sources import npz, ratings, table
from tests.messages import mentions

RNG = np.random.Generator(np.random.PCG64(0))
FRAME = pd.DataFrame(
    {
        "who": np.repeat(["ann", "bob", "cid"], 10),
        "site": np.repeat(["north", "south", "north"], 10),
        "colour": RNG.choice(["red", "green", "blue"], 30),
        "size": RNG.normal(50, 9, 30).round(3),
        "weight": RNG.integers(1, 9, 30),
        "price": RNG.normal(1000, 100, 30).round(1),
        "sold": RNG.choice(["no", "yes"], 30),
    }
)
ROLES = {"target": "price", "client": "who", "group": "site", "categories": "colour:sold"}


def written(folder, how="csv", frame=FRAME):
    path = folder / f"goods.{how}"
    if how == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("how", ["csv", "csv.gz", "parquet"])
def test_columns_have_the_roles_that_they_are_given(tmp_path, how):
    source = table.load(written(tmp_path, how), **ROLES)
    assert (source.name, source.num_classes, source.class_names) == ("goods", 1, ())
    assert source.clients.tolist() == FRAME.who.tolist() and source.group_names == ("north", "south")
    np.testing.assert_allclose(source.labels, FRAME.price, rtol=1e-6)
    np.testing.assert_allclose(source.inputs[:, :2], FRAME[["size", "weight"]], rtol=1e-6)
    assert source.inputs.shape == (30, 4) and source.labels.dtype == np.float32
    few = table.load(written(tmp_path, how), **(ROLES | {"numbers": "weight", "categories": ""}))
    np.testing.assert_allclose(few.inputs[:, 0], FRAME.weight)
    assert few.inputs.shape == (30, 1)


@pytest.mark.parametrize(("name", "words"), [("split", True), ("is_test", False), ("Fold_ID", False)])
@pytest.mark.parametrize("how", ["csv", "parquet"])
def test_a_column_that_says_which_rows_are_for_tests_is_told(tmp_path, how, name, words):
    part = RNG.integers(0, 2, 30)
    path = written(tmp_path, how, FRAME.assign(**{name: np.array(["train", "test"])[part] if words else part}))
    for roles in (ROLES | {"numbers": "size:weight"}, ROLES | {"categories": f"colour:sold:{name}"}):
        with pytest.warns(UserWarning, match=mentions(path.name, name, "test_x", "test_client")):
            table.load(path, **roles)
    table.load(path, **ROLES | {"numbers": "weight", "group": name})  # a warning would fail


def test_scaling_is_fitted_to_training_rows_alone(tmp_path):
    load = {"data_dir": written(tmp_path), **ROLES, "test_share": 0.4, "scale_target": True}
    fed = data.load("table", **load)
    assert (fed.kind, fed.num_clients, fed.group.tolist()) == ("regression", 3, [0, 1, 0])
    train, test = fed.inputs[fed.train.rows], fed.inputs[fed.test.rows]
    np.testing.assert_allclose(train[:, :2].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(train[:, :2].std(0), 1, atol=1e-6)
    np.testing.assert_allclose(fed.labels[fed.train.rows].std(), 1, atol=1e-6)
    assert (abs(test[:, :2].mean(0)) > 1e-3).all(), "test rows are scaled by the training rows"
    assert sorted(np.unique(fed.inputs[:, 2:])) == [0, 1] and (fed.inputs[:, 2:].sum(1) == 2).all()

    spoiled = FRAME.copy()  # what test rows say decides nothing
    spoiled.loc[fed.test.rows, ["size", "weight", "price"]] += 1e6
    spoiled.loc[fed.test.rows, "colour"] = "mauve"
    again = data.load("table", **load | {"data_dir": written(tmp_path, frame=spoiled)})
    assert again.inputs.shape == fed.inputs.shape
    np.testing.assert_array_equal(again.inputs[fed.train.rows], train)
    np.testing.assert_array_equal(again.labels[fed.train.rows], fed.labels[fed.train.rows])
    assert (again.inputs[fed.test.rows, 2:5] == 0).all(), "a category that nobody trains on"


def test_groups_with_shifted_classes_are_scaled_too(tmp_path):
    source = table.load(written(tmp_path), target="sold", categories="colour", numbers="size:weight")
    fed = data.shifted(source, num_clients=4, test_share=0.4)
    trained = fed.inputs[np.unique(fed.train.rows)]
    np.testing.assert_allclose(trained[:, :2].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(trained[:, :2].std(0), 1, atol=1e-6)
    assert (trained[:, 2:].sum(1) == 1).all(), "one colour each, as 0 and 1"


def test_classes_of_a_table(tmp_path):
    source = table.load(written(tmp_path), target="sold", categories="colour", numbers="size")
    assert source.class_names == ("no", "yes") and source.clients is None
    assert [source.class_names[label] for label in source.labels] == FRAME.sold.tolist()
    counted = table.load(written(tmp_path), target="weight", numbers="size", target_kind="class")
    assert counted.class_names == tuple(sorted(map(str, set(FRAME.weight))))
    options = {"data_dir": written(tmp_path), "target": "sold", "numbers": "size"}
    fed = data.load("dirichlet-table", **options, num_clients=2, alpha=100)
    assert (fed.kind, fed.num_classes, fed.input_shape) == ("classification", 2, (1,))
    with pytest.raises(ValueError, match=mentions("client", "column")):
        data.load("writers-table", **options)


def test_a_table_is_written_as_a_federation_and_not_before_it_is_dealt(tmp_path):
    source = table.load(written(tmp_path), **ROLES)
    with pytest.raises(ValueError, match=mentions("goods", "federation")):
        npz.save(source, tmp_path / "goods.npz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": ""}, ("target", "who, site, colour")),
        ({"client": "hwo"}, ("hwo", "who")),
        ({"categories": "price"}, ("price", "role")),
        ({"categories": ""}, ("colour", "numbers")),
        (
            {"target": "sold", "categories": "colour", "target_kind": "number"},
            ("sold", "row 0", "target_kind=number"),
        ),
    ],
)
def test_refusals(tmp_path, options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        table.load(written(tmp_path), **(ROLES | options))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("size", "", ("size", "''", "row 3")),
        ("size", "inf", ("size", "inf", "row 3")),
        ("colour", "", ("colour", "row 3")),
        ("weight", pd.NaT, ("weight", "NaT", "row 3")),
        ("who", "", ("who", "row 3")),
    ],
)
def test_missing_values_are_named(tmp_path, column, value, message):
    times = value is pd.NaT
    frame = FRAME.assign(weight=pd.to_datetime("2020-01-01")) if times else FRAME.astype(str)
    frame.loc[3, column] = value
    with pytest.raises(ValueError, match=mentions(*message)):
        table.load(written(tmp_path, "parquet" if times else "csv", frame), **ROLES)


def test_parquet_values_that_are_none(tmp_path):
    """Lists, a day, and two columns of one name: what is wrong is said, and what helps."""
    frame = FRAME.assign(sold=[[1]] * 29 + [[1, 2]], size=pd.Timestamp("2020-01-01").date())
    path = written(tmp_path, "parquet", frame)
    with pytest.raises(ValueError, match=mentions("sold", "ndarray", "row 0")):
        table.load(path, **(ROLES | {"numbers": "weight"}))
    with pytest.raises(ValueError, match=mentions("size", "datetime.date", "row 0", "categories")):
        table.load(path, **(ROLES | {"categories": "colour"}))
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array([1.0])] * 2, names=["price", "price"]), path)
    with pytest.raises(ValueError, match=mentions("goods.parquet", "price", "twice")):
        table.load(path, target="price")


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"\x1f\x8b and no more", b'who,price\n"a'])
def test_damaged_tables(tmp_path, content):
    (tmp_path / "goods.csv").write_bytes(content)
    with pytest.raises(ValueError, match=mentions("goods.csv", "damaged")):
        table.load(tmp_path / "goods.csv", target="price", client="who", categories="who:price")


def insteval(folder, **changes):
    rows = {name: [1, 2, 1, 2] for name in ("s", "studage", "lectage", "service")}
    frame = pd.DataFrame(rows | {"d": [7, 7, 9, 9], "dept": [3, 3, 1, 1], "y": [5, 2, 4, 1]} | changes)
    folder.mkdir()
    with gzip.open(folder / "insteval.csv.gz", "wt") as file:
        frame.to_csv(file)
    return frame


def test_ratings_are_by_lecturer(tmp_path):
    insteval(tmp_path / "ratings")
    source = ratings.load(tmp_path)
    assert source.labels.tolist() == [5, 2, 4, 1] and source.clients.tolist() == ["7", "7", "9", "9"]
    assert source.group_names == ("1", "3") and source.client_groups.tolist() == [1, 1, 0, 0]
    fed = data.load("ratings", data_dir=tmp_path, test_share=0.5)
    assert (fed.kind, fed.num_clients, fed.inputs.dtype) == ("regression", 2, np.float32)
    (tmp_path / "ratings" / "insteval.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(ValueError, match=mentions("columns", "s is missing")):
        ratings.load(tmp_path)


@pytest.mark.parametrize(
    "text", ['"size","price"\n"1",5,7\n', "size,price\n5,7,\n"], ids=["row names", "a comma at the end"]
)
def test_a_csv_with_more_fields_than_names_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=mentions("a.csv", "column")):
        table.load(tmp_path / "a.csv", target="price")


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    """Or a copy of the target would be a feature."""
    (tmp_path / "a.csv").write_text("size,price,price\n1,5,5\n2,7,7\n")
    with pytest.raises(ValueError, match=mentions("a.csv", "price", "twice")):
        table.load(tmp_path / "a.csv", target="price")


def test_a_line_with_more_fields_than_names_is_refused(tmp_path):
    """An unquoted comma in a number shifts all that is behind it."""
    rows = [f"{who},{size},{size}" for who, size in zip("aabb", range(4), strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["who,size,price", *rows, "b,1,240,7", ""]))
    with pytest.raises(ValueError, match=mentions("damaged", "line 6")):
        table.load(tmp_path / "a.csv", target="price", client="who")


@pytest.mark.parametrize("how", ["csv", "parquet"])
def test_numbers_of_rows_that_pandas_writes_are_no_feature(tmp_path, how):
    frame, path = FRAME[["who", "size", "price"]].sample(frac=1, random_state=0), tmp_path / f"a.{how}"
    frame.to_csv(path) if how == "csv" else frame.to_parquet(path)
    source = table.load(path, target="price", client="who")
    np.testing.assert_allclose(source.inputs, frame[["size"]])


def test_times_stay_apart_and_an_index_of_parquet_is_no_column(tmp_path):
    """Of seconds since 1970, float32 knows every 128th."""
    frame = pd.DataFrame({"at": 1_700_000_000 + np.arange(60), "sold": np.arange(60) % 2, "who": np.arange(60) // 20})
    frame[frame["at"] % 3 > 0].to_parquet(tmp_path / "a.parquet")
    source = table.load(tmp_path / "a.parquet", target="sold", client="who", numbers="at", target_kind="number")
    inputs, labels = source.fit(source.inputs, source.labels, np.arange(40))
    assert len(np.unique(inputs)) == 40 and inputs.dtype == labels.dtype == np.float32


def test_truth_values_are_classes_in_either_format(tmp_path):
    frame = FRAME.assign(sold=FRAME.sold == "yes")
    for how in ("csv", "parquet"):
        source = table.load(written(tmp_path, how, frame), target="sold", numbers="size")
        assert source.class_names == ("False", "True")


def test_times_with_a_zone_are_numbers_as_those_without_are(tmp_path):
    hours = pd.date_range("2024-01-01", periods=6, freq="h")
    sources = []
    for zone in (None, "UTC"):
        frame = pd.DataFrame({"who": list("aabbcc"), "at": hours.tz_localize(zone), "y": np.arange(6.0)})
        frame.to_parquet(tmp_path / "times.parquet")
        sources.append(table.load(tmp_path / "times.parquet", target="y", client="who"))
    assert sources[0].inputs.tolist() == sources[1].inputs.tolist()
    target = table.load(tmp_path / "times.parquet", target="at", client="who", scale_target=True)
    assert target.labels.tolist() == sources[1].inputs[:, 0].tolist()


def test_classes_are_not_scaled(tmp_path):
    with pytest.raises(ValueError, match=mentions("scale_target", "colour")):
        table.load(written(tmp_path), target="colour", numbers="size", scale_target=True)


def priced(folder, prices, separator=",", encoding="utf-8"):
    path = folder / "priced.csv"
    lines = ["size,price", *(f'{row}{separator}"{price}"' for row, price in enumerate(prices))]
    path.write_text("\n".join(lines).replace("size,price", f"size{separator}price"), encoding)
    return path


@pytest.mark.parametrize("odd", ["NA", "?", "inf", "1e999"])
def test_a_target_of_numbers_and_one_text_is_not_a_class_for_each_number(tmp_path, odd):
    path = priced(tmp_path, [odd if row == 7 else 1.5 * row for row in range(30)])
    with pytest.raises(ValueError, match=mentions("price", odd, "row 7", 29, "target_kind=class")):
        table.load(path, target="price")
    assert table.load(path, target="price", target_kind="class").num_classes == 30


@pytest.mark.parametrize(
    "prices",
    [
        [f"{row},5" for row in range(30)],
        [f"{row % 3},5" for row in range(30)],
        [f"{row}%" for row in range(30)],
        [f"${row}.50" for row in range(30)],
        [f"1,{row:03d}" for row in range(30)],
        [f"2024-01-{row + 1:02d}" for row in range(30)],
    ],
)
def test_texts_that_look_like_numbers_or_hardly_repeat_are_told_to_be_classes(tmp_path, recwarn, prices):
    path = priced(tmp_path, prices)
    with pytest.warns(UserWarning, match=mentions("price", len(set(prices)), prices[0], "target_kind=class")):
        table.load(path, target="price")
    recwarn.clear()
    table.load(path, target="price", target_kind="class")
    assert not recwarn.list


def test_numbers_with_a_decimal_comma_are_not_said_to_be_categories(tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text("size,price\n" + '"1,5",2.25\n' * 9)
    with pytest.raises(ValueError, match=mentions("size", "1,5", "1234.5")) as error:
        table.load(path, target="price")
    assert "categories" not in str(error.value)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_another_separator_is_named(tmp_path, separator):
    path = priced(tmp_path, range(9), separator)
    with pytest.raises(ValueError, match=mentions(repr(","), repr(separator), "separator")):
        table.load(path, target="price")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_table_in_another_encoding_is_not_called_damaged(tmp_path, encoding):
    path = priced(tmp_path, ["dän", "bob"] * 9, encoding=encoding)
    with pytest.raises(ValueError, match=mentions("priced.csv", "UTF-8")) as error:
        table.load(path, target="price")
    assert "get it again" not in str(error.value)


@pytest.mark.parametrize("scaled", ["size", "price"])
def test_differences_that_are_lost_beside_an_outlier_are_told_when_a_column_is_standardised(tmp_path, scaled):
    frame = pd.DataFrame({"size": np.arange(60.0), "price": np.arange(60.0)})
    frame[scaled] = [0, *(2**53 + 2 * row for row in range(59))]
    with pytest.warns(UserWarning, match=mentions(scaled, "equal")):
        table.load(written(tmp_path, frame=frame), target="price", scale_target=True)


def test_names_in_bytes_are_texts_or_refused(tmp_path):
    frame = FRAME.assign(who=[name.encode() for name in FRAME.who])
    assert table.load(written(tmp_path, "parquet", frame), **ROLES).clients.tolist() == FRAME.who.tolist()
    frame = FRAME.assign(who=[b"\xff", *frame.who[1:]])
    with pytest.raises(ValueError, match=mentions("goods.parquet", "who", "row 0", "UTF-8")):
        table.load(written(tmp_path, "parquet", frame), **ROLES)


@pytest.mark.parametrize("kind", ["auto", "number"])
@pytest.mark.parametrize("dtype", ["M8[ns]", "M8[ms]", "m8[ms]"])
def test_times_are_predicted_in_no_unit_of_their_own(tmp_path, dtype, kind):
    frame = FRAME.assign(at=(np.arange(30) * 10**6).astype(dtype))
    frame.to_parquet(tmp_path / "times.parquet")
    asked = {"target": "at", "numbers": "size", "target_kind": kind}
    with pytest.raises(ValueError, match=mentions("times.parquet", "at", str(np.dtype(dtype)), "scale_target=true")):
        table.load(tmp_path / "times.parquet", **asked)
    assert table.load(tmp_path / "times.parquet", **asked, scale_target=True).num_classes == 1
    frame = FRAME.assign(at=pd.date_range("2024", periods=30, tz="UTC"))
    frame.to_parquet(tmp_path / "times.parquet")
    with pytest.raises(ValueError, match=mentions("times.parquet", "at", "Timestamp", "scale_target=true")):
        table.load(tmp_path / "times.parquet", **asked)


def test_a_target_of_few_whole_numbers_is_told_once_and_not_where_its_kind_is_given(tmp_path, recwarn):
    path = written(tmp_path, frame=FRAME.assign(stars=np.arange(30) % 5))
    for kind, said in (("auto", 1), ("number", 0), ("class", 0)):
        data.load("iid-table", data_dir=path, target="stars", numbers="size", num_clients=3, target_kind=kind)
        assert len(recwarn.list) == said
        assert not said or re.search(mentions("stars", "0 to 4", "target_kind=class"), str(recwarn.pop().message))


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("sold", "yes", "Yes"),
        ("sold", "no", "no "),
        ("who", "ann", " ann"),
        ("who", "ann", "Ann"),
        ("who", "J\u00f6", "Jo\u0308"),
        ("colour", "caf\u00e9", "cafe\u0301"),  # a feature, of which two columns come
    ],
)
def test_names_that_look_alike_are_told(tmp_path, column, one, other):
    values = [one if row % 2 else other for row in range(30)]
    path = written(tmp_path, frame=FRAME.assign(**{column: values}))
    with pytest.warns(UserWarning, match=mentions("goods.csv", column, "different names")):
        assert len(np.unique(table.load(path, target="sold", client="who", categories="colour:site").labels)) == 2


GAPS = FRAME.astype(str)
GAPS.loc[[2, 11], "size"] = ["", "NA"]
GAPS.loc[[5, 12, 21], "weight"] = ["?", " nan ", ""]
GAPS.loc[[0, 7, 20], "colour"] = ["", " ?", ""]


@pytest.mark.parametrize("missing", ["mean", "most-frequent", "indicator"])
@pytest.mark.parametrize("how", ["csv", "parquet"])
def test_missing_values_are_filled_by_training_rows_alone(tmp_path, how, missing):
    frame = GAPS
    if how == "parquet":  # with nulls
        numbers = {name: pd.to_numeric(GAPS[name], errors="coerce") for name in ("size", "weight")}
        frame = GAPS.assign(**numbers, colour=GAPS.colour.where(~GAPS.colour.isin(["", " ?"]), None))
    options = {"target": "sold", "client": "who", "numbers": "size:weight", "categories": "colour", "missing": missing}
    fed = data.load("table", data_dir=written(tmp_path, how, frame), test_share=0.3, seed=3, **options)
    trained = np.zeros(30, bool)
    trained[fed.train.rows] = True
    columns = []
    flags = []
    for name in ("size", "weight"):  # in plain NumPy, column by column
        values = pd.to_numeric(GAPS[name], errors="coerce").to_numpy(float)
        gap = np.isnan(values)
        known = values[trained & ~gap]
        fill = (
            min(known, key=lambda x: (-(known == x).sum(), x))
            if missing == "most-frequent"
            else known.sum() / len(known)
        )
        filled = np.where(gap, fill, values)
        columns.append((filled - filled[trained].mean()) / filled[trained].std())
        if missing == "indicator" and gap[trained].any():
            flags.append(gap.astype(float))
    colours = [text.strip(" ?") for text in GAPS.colour]
    if missing != "indicator":
        known = [colour for colour, mine in zip(colours, trained, strict=True) if mine and colour]
        order = ["blue", "green", "red"]
        colours = [colour or max(order, key=lambda one: (known.count(one), -order.index(one))) for colour in colours]
    kinds = sorted({colour for colour, mine in zip(colours, trained, strict=True) if mine})
    hot = [[float(colour == kind) for colour in colours] for kind in kinds]
    np.testing.assert_allclose(fed.inputs, np.stack([*columns, *flags, *hot], 1), atol=1e-5)
    assert flags or missing != "indicator"


def test_missing_values_that_nothing_can_fill(tmp_path):
    options = {"target": "sold", "client": "who", "numbers": "size:weight", "categories": "colour"}
    with pytest.raises(ValueError, match=mentions("size", "row 2", "missing=mean")):
        data.load("table", data_dir=written(tmp_path, frame=GAPS), **options)
    words = GAPS.assign(weight=GAPS.weight.where(GAPS.index != 9, "heavy"))
    with pytest.raises(ValueError, match=mentions("weight", "'heavy'", "row 9")):
        data.load("table", data_dir=written(tmp_path, frame=words), **options, missing="mean")
    empty = GAPS.assign(size="")
    with pytest.raises(ValueError, match=mentions("size", "value")):
        data.load("table", data_dir=written(tmp_path, frame=empty), **options, missing="mean")
    targets = GAPS.assign(sold=GAPS.sold.where(GAPS.index != 4, ""))
    with pytest.raises(ValueError, match=mentions("sold", "row 4")):
        data.load("table", data_dir=written(tmp_path, frame=targets), **options, missing="indicator")
    few = GAPS.assign(size=GAPS["size"].where(GAPS.index < 1, ""))  # known in one row alone, which may be a test row
    for seed in range(20):
        try:
            data.load("table", data_dir=written(tmp_path, frame=few), **options, missing="mean", seed=seed)
        except ValueError as error:
            assert re.search(mentions("size", "training row"), str(error))
            break
    else:
        pytest.fail("row 0 is a training row for every seed")


@pytest.mark.parametrize(
    ("separator", "mark", "encoding"),
    [
        ("semicolon", ";", "latin-1"),
        (";", ";", "utf-16"),
        ("tab", "\t", "utf-8"),
        ("|", "|", "cp1252"),
        ("\\t", "\t", "utf-8"),
    ],
)
def test_csv_files_of_other_countries(tmp_path, separator, mark, encoding):
    frame = FRAME.assign(colour=FRAME.colour.replace("red", "r\u00f6t"), price=FRAME.price * 10)
    path = tmp_path / "goods.csv"
    frame.to_csv(path, index=False, sep=mark, decimal=",", encoding=encoding)
    source = table.load(path, **ROLES, separator=separator, decimal=",", encoding=encoding)
    plain = table.load(written(tmp_path, "csv.gz", frame), **ROLES)
    np.testing.assert_array_equal(source.inputs, plain.inputs)
    np.testing.assert_array_equal(source.labels, plain.labels)
    assert source.clients.tolist() == plain.clients.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, ("';'", "separator=semicolon")),
        ({"separator": ";"}, ("size", "decimal=,")),
        ({"separator": ",", "decimal": ","}, ("decimal", "separator", "','")),
        ({"separator": ";;"}, ("separator", "';;'")),
        ({"decimal": "x"}, ("decimal", "'x'")),
        ({"encoding": "no-such"}, ("encoding", "'no-such'", "latin-1")),
        ({"encoding": "base64"}, ("encoding", "'base64'")),
        ({"separator": ";", "decimal": ",", "encoding": "ascii"}, ("ASCII", "encoding")),
    ],
)
def test_formats_that_do_not_fit_are_told(tmp_path, options, message):
    path = tmp_path / "goods.csv"
    names = FRAME.assign(colour="r\u00f6t")
    names.to_csv(path, index=False, sep=";", decimal=",")
    with pytest.raises(ValueError, match=mentions(*message)):
        table.load(path, **ROLES, **options)


def test_points_are_no_decimals_where_commas_are(tmp_path):
    path = tmp_path / "goods.csv"
    path.write_text("a;b\n1,5;2\n1.234;3\n2,5;2\n")
    with pytest.raises(ValueError, match=mentions("a", "'1.234'", "row 1")):
        table.load(path, target="b", separator=";", decimal=",")
    with pytest.raises(ValueError, match=mentions("separator", "parquet")):
        table.load(written(tmp_path, "parquet"), **ROLES, separator=";")


def test_a_column_has_the_weights_of_clients(tmp_path):
    share = FRAME.who.map({"ann": 0.5, "bob": 2.0, "cid": 0.0})
    (tmp_path / "with").mkdir()
    path = written(tmp_path / "with", "csv", FRAME.assign(share=share))
    roles = {"target": "sold", "client": "who", "client_weight": "share", "categories": "site:colour"}
    without = {name: value for name, value in roles.items() if name != "client_weight"}
    found = data.load("writers-table", data_dir=path, **roles)
    assert dict(zip(found.client_names, found.client_weights.tolist(), strict=True)) == {"ann": 0.5, "bob": 2, "cid": 0}
    assert found.input_shape == data.load("writers-table", data_dir=written(tmp_path), **without).input_shape
    with pytest.raises(ValueError, match=mentions("client_weight", "iid-table", "writers-table")):
        data.load("iid-table", data_dir=path, num_clients=2, **roles)


@pytest.mark.parametrize(
    ("row", "value", "words"),
    [
        (3, 0.75, ("client_weight", "client ann", "0.5", "0.75")),
        (3, "", ("share", "row 3")),
        (slice(0, 10), -1, ("client_weights", -1.0, "client 0")),
        (slice(0, 30), 0, ("client_weights", "only 0")),
    ],
)
def test_weights_of_clients_that_are_none_are_refused(tmp_path, row, value, words):
    share = FRAME.who.map({"ann": 0.5, "bob": 2.0, "cid": 0.0}).astype(object)
    share.iloc[row] = value
    path = written(tmp_path, "csv", FRAME.assign(share=share))
    roles = {"target": "sold", "client": "who", "client_weight": "share", "categories": "site:colour"}
    with pytest.raises(ValueError, match=mentions(*words)):
        data.load("writers-table", data_dir=path, **roles)
