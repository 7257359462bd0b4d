"""The Grafana dashboard, as a program: ``python -m deploy.grafana.dashboard`` (``make docs``) writes stallscope.json beside it.

What is shown stands in :mod:`deploy.grafana.rows`; this is what Grafana wants to hear about a panel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.rows import ALERTS, GROUPS, REVISIONS, ROWS, Panel

FILE = Path(__file__).with_name("stallscope.json")
UID = "stallscope"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_GREEN_TO_RED = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(
    [models.Threshold(value=None, color="green"), models.Threshold(value=1, color="red")]
)  # fmt: skip
_SHARES = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(
    [
        models.Threshold(value=None, color="green"), models.Threshold(value=0.05, color="yellow"),
        models.Threshold(value=0.2, color="orange"), models.Threshold(value=0.5, color="red"),
    ]
)  # fmt: skip
_BY_SERIES = dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC)
_BY_VALUE = dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def _lines(panel: Panel, *, stacked: bool) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .unit(panel.unit)
        .min(0)
        .line_width(1)
        .fill_opacity(40 if stacked else 5)
        .color_scheme(_BY_SERIES)
    )
    made.legend(
        common.VizLegendOptions()
        .display_mode(looks.LegendDisplayMode.LIST)
        .placement(looks.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    made.tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    if stacked:
        made.stacking(common.StackingConfig().group("A").mode(looks.StackingMode.NORMAL))
    return made


def _stat(panel: Panel, *, alarm: bool) -> stat.Panel:
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"])
    made = stat.Panel().unit(panel.unit).reduce_options(reduced).color_mode(looks.BigValueColorMode.VALUE)
    made.graph_mode(looks.BigValueGraphMode.AREA)
    return made.thresholds(_GREEN_TO_RED).color_scheme(_BY_VALUE) if alarm else made.color_scheme(_BY_SERIES)


def _heatmap(panel: Panel) -> heatmap.Panel:
    """Its series are its rows: each is named by the value that it counts."""
    made = (
        heatmap.Panel()
        .calculate(False)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(looks.HeatmapCellLayout.UNKNOWN))
    )
    made.color(heatmap.HeatmapColorOptions().scheme("Oranges").steps(64).fill("dark-orange").exponent(0.5))
    return made.y_axis(heatmap.YAxisConfig().unit(panel.unit))


def _table(_: Panel) -> table.Panel:
    merge = models.DataTransformerConfig(id_val="merge", options={})
    named = {"Value #A": "instances", "Value #B": "stand still", "Value #C": "worst share"}
    tidy = models.DataTransformerConfig(
        id_val="organize", options={"excludeByName": {"Time": True}, "renameByName": named}
    )
    made = table.Panel().transformations([merge, tidy])
    return made.override_by_name("worst share", [models.DynamicConfigValue(id_val="unit", value="percentunit")])


def _panel(panel: Panel) -> Any:
    """Its builder."""
    made: Any
    if panel.kind in ("stat", "alarm"):
        made = _stat(panel, alarm=panel.kind == "alarm")
    elif panel.kind == "heatmap":
        made = _heatmap(panel)
    elif panel.kind == "table":
        made = _table(panel)
    elif panel.kind == "history":
        made = (
            statushistory.Panel()
            .unit(panel.unit)
            .thresholds(_SHARES)
            .color_scheme(_BY_VALUE)
            .row_height(0.9)
            .show_value(looks.VisibilityMode.NEVER)
        )
    else:
        made = _lines(panel, stacked=panel.kind == "stacked")
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter)
        made.with_target(target.instant().format(PromQueryFormat.TABLE) if panel.kind == "table" else target.range())
    return made.title(panel.title).description(panel.says).datasource(SOURCE).span(panel.width).height(panel.height)


def _variables() -> Iterator[Any]:
    yield dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    yield _chosen("job", "Service (job)", "label_values(stallscope_build_info, job)")
    options = [models.VariableOption(text=each, value=each, selected=each == REVISIONS[0]) for each in REVISIONS]
    label = dashboard.CustomVariable("revision_label").label("Revisions are told by").values(",".join(REVISIONS))
    yield label.options(options).current(options[0])
    yield _chosen("revision", "Revision", 'label_values(stallscope_build_info{job=~"$job"}, $revision_label)')
    yield _chosen("instance", "Instance", f"label_values(stallscope_build_info{{{GROUPS}}}, instance)")


class _AllOrSome(dashboard.QueryVariable):
    """One from which everything may be chosen, also what has no such label."""

    def build(self) -> models.VariableModel:
        """With what the builder cannot say."""
        made = super().build()
        made.include_all, made.all_value = True, ".*"
        return made


def _chosen(name: str, label: str, query: str) -> _AllOrSome:
    everything = models.VariableOption(text="All", value="$__all", selected=True)
    made = _AllOrSome(name).label(label).query(query).datasource(SOURCE).multi(True)
    return (
        made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .current(everything)
    )


def text() -> str:
    """The dashboard as JSON."""
    made = (
        dashboard.Dashboard("stallscope: why is it slow?")
        .uid(UID)
        .tags(["stallscope"])
        .refresh("30s")
        .time("now-1h", "now")
    )
    made.description("From the verdict down to the cause, and the fleet. Generated by deploy/grafana/dashboard.py.")
    made.tooltip(models.DashboardCursorSync.CROSSHAIR).timezone("browser").variables(list(_variables()))
    alerts = dashboard.AnnotationQuery().name("Alerts").datasource(SOURCE).enable(True).icon_color("red").expr(ALERTS)
    made.annotation(alerts)
    for row, panels in ROWS.items():
        made.with_row(dashboard.Row(row))
        for panel in panels:
            made.with_panel(_panel(panel))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
    print(FILE)
