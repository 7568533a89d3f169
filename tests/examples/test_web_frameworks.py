"""The guides for web frameworks, with the frameworks themselves: a request submits a job, and a handler runs it."""

import json
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest

from documented import ROOT, blocks_of
from engine import until
from evertick import AsyncClient
from evertick.domain.states import RunStatus
from evertick.store.server.embedded import EmbeddedServer
from front_door import Server, stopped, told

GUIDES = ROOT / "docs" / "guides"
MANAGE = """\
import os, sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
execute_from_command_line(sys.argv)
"""
DJANGO_SETTINGS = """
SECRET_KEY = "tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = "sent"
USE_TZ = True
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
    "context_processors": ["django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                           "django.contrib.messages.context_processors.messages"]}}]
DATABASES["default"] |= DATABASE
"""
DJANGO_URLS = """\
from django.contrib import admin
from django.urls import path
from shop.views import sign_up
urlpatterns = [path("users", sign_up), path("admin/", admin.site.urls)]
"""
DJANGO_REQUESTS = """\
import json, django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from evertick.contrib.django import app
from evertick.contrib.django.admin import job_link
from shop.jobs import send_welcome

call_command("migrate", verbosity=0)
call_command("makemigrations", check_changes=True, verbosity=0)
client = Client()
answer = client.post("/users", {"name": "ada", "email": "ada@example.com"})
try:
    with transaction.atomic():
        lost = send_welcome.options(name="lost").submit_sync(user_id=0)
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
kept = send_welcome.options(name="kept").submit_sync(user_id=0, delay="1h")
User.objects.create_superuser("root", "root@example.com", "secret")
client.login(username="root", password="secret")
print(json.dumps({
    "status": answer.status_code,
    "job": answer.json()["job"],
    "kept": kept.job_id,
    "index": client.get("/admin/").content.decode(),
    "pages": [client.get(f"/admin/evertick/{page}/").headers["Location"]
              for page in ("jobspage", "runspage", "deadletterspage")],
    "link": job_link("job_1"),
}))
app.close_sync()
"""

pytestmark = pytest.mark.asyncio(loop_scope="session")


def written(guide: str, folder: Path) -> Path:
    """The files that a guide shows."""
    for block in blocks_of(GUIDES / guide):
        if block.language == "python" and block.file is not None:
            (folder / block.file).parent.mkdir(exist_ok=True)
            (folder / block.file).write_text(block.code, encoding="utf-8")
    return folder


@asynccontextmanager
async def submitted_by_request(server: Server, url: str) -> AsyncIterator[tuple[AsyncClient, str]]:
    """The job that a request has submitted."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as stranger:
        answer = await stranger.post(url, data={"user": "ada"})
    assert answer.status_code == 202, answer.text
    async with AsyncClient(server.url, server.api_key) as client:
        job = await client.jobs.get(answer.json()["job"])
        assert job.payload == {"user": "ada"}
        try:
            yield client, job.job_id
        finally:
            await client.jobs.delete(job.job_id)


async def run_of(client: AsyncClient, job_id: str) -> RunStatus:
    """How a run of the job ends."""
    run_id = (await client.jobs.trigger(job_id)).run_id

    async def has_ended() -> bool:
        return (await client.runs.get(run_id)).status in {"success", "failed", "dead"}

    await until(has_ended)
    return RunStatus((await client.runs.get(run_id)).status)


async def shut_down(uvicorn: Process) -> None:
    """Gracefully. Uvicorn raises the signal once more after that, which ends it."""
    uvicorn.send_signal(signal.SIGTERM)
    await told(uvicorn.stderr, "Application shutdown complete")
    await uvicorn.communicate()


@pytest.mark.parametrize("guide", ["fastapi.md", "litestar.md"])
async def test_an_app_runs_inside_of_a_web_application(server: Server, tmp_path: Path, guide: str) -> None:
    folder = written(guide, tmp_path)
    program = (sys.executable, "-m", "uvicorn", "shop:web", "--port", "0")
    async with server.running(*program, cwd=folder, EVERTICK_DATA_DIR=str(server.data_dir)) as web:
        url = (await told(web.stderr, r"[Rr]unning on (http://\S+)"))[1]
        async with submitted_by_request(server, f"{url}/users/ada") as (client, job_id):
            assert await run_of(client, job_id) is RunStatus.SUCCESS
        await shut_down(web)


async def test_a_route_of_fastapi_gets_the_app(server: Server, tmp_path: Path) -> None:
    folder = written("fastapi.md", tmp_path)
    (folder / "only_submits.py").write_text(
        "from shop import jobs, lifespan, run_handler\nfrom fastapi import FastAPI\n"
        "web = FastAPI(lifespan=lifespan(jobs, runs='nothing'))\n"
        "web.post('/handlers/{handler}', status_code=202)(run_handler)\n",
        encoding="utf-8",
    )
    program = (sys.executable, "-m", "uvicorn", "only_submits:web", "--port", "0")
    async with server.running(*program, cwd=folder, EVERTICK_DATA_DIR=str(server.data_dir)) as web:
        url = (await told(web.stderr, r"[Rr]unning on (http://\S+)"))[1]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as stranger:
            answer = await stranger.post(f"{url}/handlers/send_welcome")
        async with AsyncClient(server.url, server.api_key) as client:
            job = await client.jobs.get(answer.json()["job"])
            assert job.payload == {"user": "somebody"}
            await client.jobs.delete(job.job_id)
        await shut_down(web)


async def test_flask_submits_and_its_worker_runs_in_its_context(server: Server, tmp_path: Path) -> None:
    folder = written("flask.md", tmp_path)
    flask = (sys.executable, "-m", "flask", "--app", "shop:web")
    database = {"EVERTICK_DATA_DIR": str(server.data_dir), "EVERTICK_URL": ""}
    async with (
        server.running(*flask, "run", "--port", "0", cwd=folder, **database) as web,
        server.running(*flask, "evertick", "worker", cwd=folder, **database) as worker,
    ):
        url = (await told(web.stderr, r"[Rr]unning on (http://\S+)"))[1]
        async with submitted_by_request(server, f"{url}/users") as (client, job_id):
            assert await run_of(client, job_id) is RunStatus.SUCCESS
        assert (await told(worker.stderr, "welcome to the shop, ada"))[0]
        assert await stopped(worker) == 0
        assert await stopped(web) in (0, -15)  # Flask's own server does not handle SIGTERM


def django_database(server: Server) -> dict[str, str]:
    url = urlsplit(EmbeddedServer(server.data_dir).url)
    query = parse_qs(url.query)
    return {
        "NAME": url.path.lstrip("/"),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": query.get("host", [url.hostname or ""])[0],
        "PORT": query.get("port", [str(url.port or "")])[0],
    }


async def test_django_submits_in_its_transactions_and_its_worker_runs_them(server: Server, tmp_path: Path) -> None:
    folder = written("django.md", tmp_path)
    settings = (folder / "shop" / "settings.py").read_text(encoding="utf-8")
    database = f"DATABASE = {django_database(server)!r}\n"
    (folder / "shop" / "settings.py").write_text(settings + database + DJANGO_SETTINGS, encoding="utf-8")
    (folder / "shop" / "urls.py").write_text(DJANGO_URLS, encoding="utf-8")
    (folder / "manage.py").write_text(MANAGE, encoding="utf-8")
    manage = (sys.executable, "manage.py")
    environment = {"EVERTICK_URL": ""}
    requests = (sys.executable, "-c", DJANGO_REQUESTS)
    said = json.loads(await server.output(*requests, cwd=folder, DJANGO_SETTINGS_MODULE="shop.settings", **environment))
    assert said["status"] == 202
    assert "/admin/evertick/jobspage/" in said["index"]
    assert said["pages"] == [f"https://evertick.example.com/{page}" for page in ("jobs", "runs", "dead-letters")]
    assert said["link"] == '<a href="https://evertick.example.com/jobs/job_1">job_1</a>'
    listed = await server.output(*manage, "evertick", "jobs", "list", "--json", cwd=folder, **environment)
    assert {"kept"} == {job["name"] for job in json.loads(listed)} & {"kept", "lost"}
    async with server.running(*manage, "evertick", "worker", "--processes", "2", cwd=folder, **environment) as worker:

        async def is_sent() -> bool:
            return any("ada@example.com" in file.read_text() for file in (folder / "sent").glob("*"))

        await until(is_sent)
        assert await stopped(worker) == 0
    async with AsyncClient(server.url, server.api_key) as client:
        await client.jobs.delete(said["kept"])
