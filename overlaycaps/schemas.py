"""Names and versions of the files that the program writes and reads again."""

RUN_SCHEMA = "overlaycaps.run"
RUN_VERSION = 1

RESULT_SCHEMA = "overlaycaps.result"
RESULT_VERSION = 1

CHECKPOINT_SCHEMA = "overlaycaps.checkpoint"
CHECKPOINT_VERSION = 2

REPORT_SCHEMA = "overlaycaps.report"
REPORT_VERSION = 1

INSPECTION_SCHEMA = "overlaycaps.inspection"
INSPECTION_VERSION = 1
