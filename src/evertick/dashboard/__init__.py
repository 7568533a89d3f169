"""The dashboard: pages for browsers at `/`, on the use cases of the API.

How a page is made

1. A module in `pages/` has `routes = page_routes("Name")`, and `site` lists it. A handler is declared as in the API:

       @routes.operation("GET", "/jobs", KeyRole.VIEWER)
       async def jobs_page(request: AuthenticatedRequest, query: JobsPageQuery) -> Response:
           found = await reading.list_jobs(request.tenant, ...)
           return render(request, "jobs.html", found=found, query=query)

   It goes through the steps of every request (`api/pipeline`): session, role, quotas, and for a POST one transaction
   with its entry in the audit log. The name of a handler of a POST is the action in the audit log: it is that of the
   API's operation, such as `pause_job`. All reading and changing is in `usecases`, which the API shares.

2. `render` fills a template of `templates/`, which extends `base.html` and imports `macros.html`. In every template:
   `url("/jobs", status="paused")` adds the path prefix, `static("app.js")` names an asset, `can("editor")` says whether
   the role allows it: what a caller may not do is not offered. Filters: `number`, `seconds`, `milliseconds`.
   Macros: `page_header`, `badge`, `ago`, `sort_link`, `pager`, `empty`, `field`, `confirm`. Values are escaped always;
   nothing is marked as safe but what `charts` draws. The Content Security Policy allows no inline script and no style
   attribute: use classes, and attributes of SVG.

3. A form is a POST with `{{ csrf() }}` and a body that `form(Struct)` declares; `form()` alone hands over the texts as
   `Fields`. An empty field counts as one that is not there. The response is `redirect(request, path, toast="Paused.")`.
   Wrap what may be refused in `redisplayed(request, template, fields=body, ...)`: the transaction is undone, and the
   template is shown again, with `errors` by the names of fields and `fields` as they were sent. `name_of` maps pointers
   of the contract to names of fields, where they differ. The form of a job is made from the contract (`jobs/fields`).

4. A fragment of a page is a template of its own, included by the page, with an id at its outer element. A handler with
   `live(request, draw)` sends it again whenever it has changed, to an element with `data-live="url"`.

5. Attributes that `static/app.js` knows: `data-live` (a stream of fragments), `data-filter` on a GET form (fetches as
   one types, swaps `#results`, keeps the URL), `data-preview="url"` with `data-into="#id"` on a form (posts what is
   typed, and shows the fragment that comes back; with `data-preview-now` also at once), `data-continue` on a form that
   goes on by itself, `data-bulk` on a form of rows to select, `data-confirm="dialog-id"` on a link to the
   dialog (with `data-refresh="url"` a fragment is fetched as it opens), `data-outdates-results` on a fragment (when
   its value changes, `#results` is fetched again), `data-rows` on a table body (`j`, `k`, `x`, Enter),
   `data-search` on the field that `/` focuses (else it is the first of a form for searches), `data-copy="#id"`,
   `data-toggle="#id"`. Times are `<time>` elements by the macro `ago`: the script keeps them current, in the zone of
   the browser. A fragment that comes leaves an open dialog as it is.

6. Tests: `tests/browser` has a server and a page for each role, and fails on any error in the console or violation of
   the policy. Add the page to `PAGES` in `tests/browser/pages.py`: it is then checked with axe, light and dark, with
   hostile texts, and drawn by `python tests/browser/screenshots.py DIRECTORY`.
"""
