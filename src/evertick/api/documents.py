"""What several operations say about themselves in the published description: shapes, headers, links."""

from evertick.api.operations import Shown

IF_MATCH = "If-Match"
IDEMPOTENCY_KEY = "Idempotency-Key"
REPEATED = "Idempotency-Replayed"
JOB = "Job"
JOBS = "Jobs"
RUN = "Run"
RUN_DETAIL = "RunDetail"

_JOB_ID = {"job_id": "$response.body#/job_id"}
_RUN_ID = {"run_id": "$response.body#/run_id"}
JOB_LINKS = {
    "get": ("get_job", _JOB_ID),
    "edit": ("edit_job", _JOB_ID),
    "pause": ("pause_job", _JOB_ID),
    "resume": ("resume_job", _JOB_ID),
    "trigger": ("trigger_job", _JOB_ID),
    "upcoming": ("list_upcoming", _JOB_ID),
    "runs": ("list_job_runs", _JOB_ID),
    "delete": ("delete_job", _JOB_ID),
}
RUN_LINKS = {
    "get": ("get_run", _RUN_ID),
    "cancel": ("cancel_run", _RUN_ID),
    "replay": ("replay_run", _RUN_ID),
}
RUN_ACCEPTED = Shown(RUN, "The run, which waits for a worker.", ("Location",), RUN_LINKS)
