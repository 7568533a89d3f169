"""Texts as regular expressions, for the published description.

Those of schedules and windows are narrower than what is accepted: JSON Schema cannot say that a date exists, that a
range is in order, or that an instant lies in the future. Whatever fits them is accepted, and so is much else.
"""

_ID = "[0-7][0-9a-hjkmnp-tv-z]{12}"
_FIRE_TIME = "00[0-6][0-9a-hjkmnp-tv-z]{10}"
JOB_ID = f"^job_{_ID}$"
RUN_ID = f"^run_{_ID}{_FIRE_TIME}$"
REPLAY_ID = f"^rpl_{_ID}$"
ALERT_ID = f"^alr_{_ID}$"
SMEAR_ID = f"^smr_{_ID}$"
KEY_ID = f"^key_{_ID}$"
TENANT_ID = f"^ten_{_ID}$"
RULE_ID = "^[0-7][0-9a-f]{15}$"
ENTRY = "^[0-9]{1,18}$"
HISTORY = r"^[0-9]{1,17}\.[0-9]{1,2}$"
LETTER = rf"^[0-9]{{1,17}}\.run_{_ID}{_FIRE_TIME}$"
QUEUE = "^[a-z0-9][a-z0-9._-]{0,62}$"
HOST = r"^[!-.0-~]{1,261}$"
BROKER_HOST = r"^[A-Za-z0-9_.:\[\]-]+$"
BROKER_SERVER = r"^[A-Za-z0-9_.\[\]:-]+$"
ENDPOINT = r"^https?://[^\s/?#@]+/?$"
CONNECTION = "^[a-z][a-z0-9._-]{0,62}$"
TOPIC = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}$"
SUBJECT = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
ROUTING_KEY = "^[ -z|~]+$"
EXCHANGE = "^[!-~]{0,255}$"
QUEUE_URL = (
    r"^https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[!-.0-\[\]-~]+)*"
    r"/([A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo)$"
)
WORKER_ID = "^[A-Za-z0-9._:@-]{1,128}$"
_NUMBER = "(0|[1-9][0-9]{0,17})"
FENCING = rf"^{_NUMBER}\.{_NUMBER}$"
RUNS = rf"^{_NUMBER}\.{_NUMBER}\.{_NUMBER}$"
LENGTH = "^[1-9][0-9]{0,2}(s|m|h|d)$"
STORABLE = r"^[^\x00]*$"
LABEL = r"^[^:\x00]+:[^\x00]*$"
LABEL_KEY = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
HANDLER = "^[!-~]{1,255}$"
NAME = r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$"
IDEMPOTENCY_KEY = "^[!-~]([ -~]*[!-~])?$"
_ENTITY_TAG = '(W/)?"[!#-~]*"'
IF_MATCH = rf"^(\*|{_ENTITY_TAG}( *, *{_ENTITY_TAG})*)$"
HEADER_NAME = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
HEADER_VALUE = r"^([!-~]([\t -~]*[!-~])?)?$"
URL = (
    r"^https?://[A-Za-z0-9._-]+(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}))?"
    r"([/?#][!-\[\]-~]*)?$"
)
GATE_KEY = r"^[^{}\x00-\x1f\x7f-\x9f]+$"
KEY_TEMPLATE = r"^([^{}\x00-\x1f\x7f-\x9f]|\{\{(job_id|name|fire_at|fire_at_unix|date|week|month|year)\}\})+$"

_DAY = "(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = r"(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])"
START_AT = f"^20[0-4][0-9]-{_DAY}T{_TIME}{_ZONE}$"
END_AT = f"^21[0-9]{{2}}-{_DAY}T{_TIME}{_ZONE}$"
FUTURE = f"^20[5-9][0-9]-{_DAY}T{_TIME}{_ZONE}$"

_SIXTY = r"(\*|\*/[1-9]|[0-9]|[1-5][0-9]|[0-9]-[1-5][0-9](/[1-9])?|[0-5]?[0-9](,[0-5]?[0-9]){1,5})"
_HOUR = r"(\*|\*/[1-9]|[0-9]|1[0-9]|2[0-3]|[0-9]-(1[0-9]|2[0-3])(/[1-9])?|(1?[0-9])(,1?[0-9]){1,5})"
_DAY_OF_MONTH = r"(\*|L|[1-9]|1[0-9]|2[0-8]|[1-9]-(1[0-9]|2[0-8])|[1-9](,(1[0-9]|2[0-8])){1,5})"
_MONTH = r"(\*|[1-9]|1[0-2]|[1-9]-1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)"
_DAY_OF_WEEK = r"(\*|[0-7]|1-5|[1-5]#[1-4]|[1-5]L|MON-FRI|(SUN|MON|TUE|WED|THU|FRI|SAT)(,(MON|WED|FRI)){0,2})"

SCHEDULES = {
    "cron": f"^{_SIXTY} {_HOUR} {_DAY_OF_MONTH} {_MONTH} {_DAY_OF_WEEK}$",
    "nickname": "^@(hourly|daily|midnight|weekly|monthly|yearly|annually)$",
    "interval": "^@?every [1-9][0-9]{0,3}(s|m|h|d)$",
    "repeating interval": "^R/20[0-4][0-9]-01-01T00:00:00Z/PT[1-9][0-9]?(M|H)$",
    "recurrence": "^RRULE:FREQ=(DAILY|WEEKLY|MONTHLY);INTERVAL=[1-9];BYHOUR=(1?[0-9]);BYMINUTE=[1-5]?[0-9]$",
    "instant": FUTURE,
    "delay": "^(now|in [1-9][0-9]{0,3}(s|m|h|d))$",
    "by hand": "^manual$",
}
