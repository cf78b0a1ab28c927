"""Renderers of a report to text: one format a file, one table of names.

To add one, write ``report/renderers/<name>.py`` with a function ``(Report) -> str`` and add its row here. The
terminal is not among them: it draws on a console, whose width and encoding it has to heed.
"""

from overlaycaps.tables import Row, Table

RENDERERS = Table(
    Row(
        name="md",
        summary="Markdown tables, as on GitHub",
        reference="GitHub Flavored Markdown",
        target="overlaycaps.report.renderers.markdown:render",
    ),
    Row(
        name="json",
        summary="JSON with a versioned schema, for programs",
        reference="RFC 8259",
        target="overlaycaps.report.renderers.json:render",
    ),
)
