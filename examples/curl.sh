#!/bin/sh
# The life of a job, with curl alone. Start `evertick up`, then:
#
#   EVERTICK_URL=http://127.0.0.1:8700 EVERTICK_API_KEY=evt_… sh curl.sh
#
# The job calls the server's own /livez, unless TARGET_URL names another URL.
set -eu

api="$EVERTICK_URL/api/v1"
target="${TARGET_URL:-$EVERTICK_URL/livez}"
name="curl-$$-$(date +%s)"

# Prints the request and the response. The key comes from a pipe: every user of a machine can see arguments.
call() {
    method=$1 path=$2
    shift 2
    echo "> $method $path" >&2
    printf 'header = "Authorization: Bearer %s"\n' "$EVERTICK_API_KEY" |
        curl --config - --silent --show-error --fail-with-body --request "$method" \
            --write-out '\n' --header 'Content-Type: application/json' "$@" "$api$path"
}

field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }

echo '# Create a job. Repeated with the same Idempotency-Key, it returns the first response.'
for _ in 1 2; do
    job=$(call POST /jobs --header "Idempotency-Key: $name" --data '{
        "name": "'"$name"'",
        "schedule": "0 9 * * 1",
        "timezone": "America/New_York",
        "target": {"type": "http", "url": "'"$target"'", "method": "GET"},
        "labels": {"from": "curl"}
    }')
    echo "$job"
done
job_id=$(echo "$job" | field job_id)

echo '# List the jobs with its label.'
call GET '/jobs?label=from:curl&limit=10'

echo '# When will it run?'
call GET "/jobs/$job_id/upcoming?count=3"

echo '# Run it now, too.'
run=$(call POST "/jobs/$job_id/trigger")
echo "$run"
run_id=$(echo "$run" | field run_id)

echo '# List its runs. `status` is pending or running at first, and then success.'
call GET "/jobs/$job_id/runs?limit=5"

echo '# Pause it, and resume it.'
call POST "/jobs/$job_id/pause" --data '{"reason": "the office is closed"}'
call POST "/jobs/$job_id/resume" --data '{"missed": "skip"}'

echo '# Delete it. Its run stays in the history, with every attempt.'
call DELETE "/jobs/$job_id"
call GET "/runs/$run_id"
