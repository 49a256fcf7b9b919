"""The files of conf/ are started, parsed and run: a Redis for each conf, and a job from the wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest
import redis
import yaml
from clusters import wait_for
from servers import LOOPBACK, RedisServer

from lake_spark import Lake, MergeType
from lake_spark.client.settings import Config, storage_of
from lake_spark.errors import IndexDenied
from lake_spark.options import BatchOptions, Options, camel_case

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
# What the wheel is called, whatever its version.
WHEEL = "lake_spark-*.whl"
FLUSHES = ("FLUSHDB", "FLUSHALL")


def directives(text: str) -> list[list[str]]:
    """The directives of a Redis configuration, in their order."""
    return [shlex.split(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def setting(client: redis.Redis, name: str) -> str:
    found: dict[str, str] = client.config_get(name)
    return found[name]


# Redis


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("index"), conf=CONF / "redis-index.conf") as server:
        yield server


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("cache"), conf=CONF / "redis-cache.conf") as server:
        yield server


def test_the_index_persists_and_does_not_evict(index: RedisServer) -> None:
    with redis.Redis.from_url(index.url, decode_responses=True) as client:
        names = ("appendonly", "appendfsync", "save", "maxmemory-policy", "maxmemory", "no-appendfsync-on-rewrite")
        assert {name: setting(client, name) for name in names} == {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "900 1 300 10 60 100",
            "maxmemory-policy": "noeviction",
            "maxmemory": "0",
            "no-appendfsync-on-rewrite": "no",
        }
        assert client.info("persistence")["aof_enabled"] == 1


def test_nothing_empties_the_index(index: RedisServer) -> None:
    with redis.Redis.from_url(index.url) as client:
        client.set("kept", "1")
        for command in FLUSHES:
            with pytest.raises(redis.ResponseError, match="unknown command"):
                client.execute_command(command)
        assert client.getdel("kept") == b"1"


def test_a_lake_works_on_the_index_and_survives_its_end(index: RedisServer, file_config: dict[str, str]) -> None:
    with Lake(index.url, config=file_config) as lake:
        lake.write("users", {"name": "Alice"})
        lake.write("users", {"age": 30}, merge=MergeType.RFC7396)
        lake.write_many([("users", {"city": "Oslo"}, "/", MergeType.RFC7396), ("others", 1)])
        lake.clear_history("users")
    index.restart()
    with Lake(index.url, config=file_config) as lake:
        assert lake.read_map("users") == {"name": "Alice", "age": 30, "city": "Oslo"}
        assert lake.read_string("others") == "1"


def test_the_log_of_the_index_survives_a_kill(index: RedisServer, file_config: dict[str, str]) -> None:
    with Lake(index.url, config={**file_config, "Name": "killed"}) as lake:
        lake.write("users", {"n": 1})
        with redis.Redis.from_url(index.url) as client:
            # Redis holds back what it logs while a slow disk syncs.
            wait_for(lambda: client.info("persistence")["aof_buffer_length"] == 0)
        # The system has what Redis wrote, synced or not: only the end of the machine could take it.
        index.kill()
        index.start()
        assert lake.read_map("users") == {"n": 1}


def test_an_index_is_restored_from_its_copy_as_the_page_says(tmp_path: Path, file_config: dict[str, str]) -> None:
    conf = CONF / "redis-index.conf"
    restored = tmp_path / "restored"
    restored.mkdir()
    with RedisServer(tmp_path / "lost", conf=conf) as server, redis.Redis.from_url(server.url) as client:
        with Lake(server.url, config=file_config) as lake:
            lake.write("users", {"n": 1})
            before = client.lastsave()
            # Saves of one second cannot be told apart by their time.
            wait_for(lambda: client.time()[0] > before.timestamp())
            client.bgsave()
            wait_for(lambda: client.lastsave() > before)
            shutil.copy(server.folder / "dump.rdb", restored)
            lake.write("users", {"n": 2})
    with RedisServer(restored, conf=conf, args=("--appendonly", "no")) as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("appendonly", "yes")
            wait_for(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
    with RedisServer(restored, conf=conf) as server, Lake(server.url, config=file_config) as lake:
        assert lake.read_map("users") == {"n": 1}
        lake.write("users", {"n": 3})
        assert lake.read_map("users") == {"n": 3}


def test_catalogs_take_as_much_memory_as_the_page_says(index: RedisServer, file_config: dict[str, str]) -> None:
    catalogs = 5000
    sizes = []
    with redis.Redis.from_url(index.url) as client, Lake(index.url, config={**file_config, "Name": "sized"}) as lake:
        for n in range(6):
            sizes.append(client.info("memory")["used_memory"])
            lake.write_many((f"user-{k:08d}", {"n": n}) for k in range(catalogs))
    first, *further = ((after - before) / catalogs for before, after in pairwise(sizes))
    # Half as much again, for another Redis.
    assert first < 235 * 1.5
    assert sum(further) / len(further) < 69 * 1.5


def test_the_user_on_the_security_page_can_do_what_a_lake_does_and_no_more(
    tmp_path: Path, file_config: dict[str, str]
) -> None:
    [line] = re.findall(r"^```conf\n(.*)\n```$", (ROOT / "docs" / "security.md").read_text(), re.MULTILINE)
    conf = tmp_path / "redis.conf"
    user = line.replace("s3:my-lake:", "file:test:")
    conf.write_text(f"include {CONF / 'redis-index.conf'}\n{user}\n")
    with RedisServer(tmp_path / "redis", conf=conf) as server:
        url = f"redis://lake:a-password@{LOOPBACK}:{server.port}/0"
        with Lake(url, snapshot="always") as lake:
            lake.update_config(file_config)
            first = lake.write("users", {"n": 1}, meta={"by": "test"})
            lake.write_many([("users", {"n": 2}), ("others", 1)])
            lake.write_file("users", "/a.txt", b"x")
            lake.remove_delta("others", lake.list("others").version)
            lake.read_map(lake.list("users", as_of=first))
            lake.motion_sample("users", "seen", ["users"], None, lambda changed: None)
            lake.read_map("users")
            lake.clear_history("users")
            assert lake.read_map("users") == {"n": 2}
            assert (lake.meta("users"), list(lake.catalogs())) == ({"by": "test"}, ["users"])
        with redis.Redis.from_url(url) as client:
            for command in ("KEYS *", "CONFIG GET save", "SHUTDOWN", "SCRIPT FLUSH", "GET other", "INFO"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())
        with Lake(url, config={**file_config, "Name": "other"}) as lake, pytest.raises(IndexDenied):
            lake.write("users", 1)


def test_the_policy_on_the_security_page_has_the_rights_of_one_lake() -> None:
    [block] = re.findall(r"^```jsonc\n(.*?)^```$", (ROOT / "docs" / "security.md").read_text(), re.MULTILINE | re.S)
    setting = json.loads((CONF / "lake.setting.example.json").read_text())
    objects, bucket = json.loads(block)["Statement"]
    arn = f"arn:aws:s3:::{setting['Bucket']}"
    assert (objects["Action"], objects["Resource"]) == (
        ["s3:GetObject", "s3:PutObject"],
        f"{arn}/{setting['BasePath']}/*",
    )
    assert (bucket["Action"], bucket["Resource"]) == ("s3:ListBucket", arn)


def test_sets_of_long_members_stay_packed(index: RedisServer, file_config: dict[str, str]) -> None:
    path = "/" + "/".join(["field"] * 25)
    with Lake(index.url, config={**file_config, "Name": "packed"}) as lake:
        for n in range(200):
            lake.write("users", n, path=path, meta={"by": "x" * 200})
        rows = [("bulk", n) for n in range(3)]
        for _ in range(3):
            lake.write_many(rows)
    with redis.Redis.from_url(index.url) as client:
        packed = {client.object("ENCODING", key) for key in client.scan_iter("file:packed:[dm]e*", count=1000)}
        assert client.zcard("file:packed:delta:dXNlcnM") == 200
    assert packed <= {b"ziplist", b"listpack"}
    assert packed


def test_the_cache_keeps_nothing_on_disk_and_evicts(cache: RedisServer) -> None:
    with redis.Redis.from_url(cache.url, decode_responses=True) as client:
        names = ("appendonly", "save", "maxmemory", "maxmemory-policy")
        assert {name: setting(client, name) for name in names} == {
            "appendonly": "no",
            "save": "",
            "maxmemory": str(4 << 30),
            "maxmemory-policy": "allkeys-lru",
        }
        client.set("gone", "1")
        cache.restart()
        assert client.get("gone") is None
    assert not [path for path in cache.folder.rglob("*") if path.suffix in (".rdb", ".aof")]


def test_snapshots_are_shared_through_the_cache(
    index: RedisServer, cache: RedisServer, file_config: dict[str, str]
) -> None:
    config = {**file_config, "Name": "cached"}
    with Lake(index.url, config=config, snapshot="always", snapshot_cache_url=cache.url) as lake:
        lake.write("users", {"n": 1})
        lake.read_map("users")
        lake.flush()
        lake.read_map("users")
    with Lake(index.url, config=config, snapshot_cache_url=cache.url) as lake:
        assert lake.read_map("users") == {"n": 1}
        assert lake.cache_stats()["snapshots"].hits == 1
    # A cache that was emptied costs a read of the storage.
    with redis.Redis.from_url(cache.url) as client:
        client.flushall()
    with Lake(index.url, config=config, snapshot_cache_url=cache.url) as lake:
        assert lake.read_map("users") == {"n": 1}


@pytest.mark.parametrize("name", ["index", "cache"])
def test_helm_values_say_what_the_conf_says(name: str) -> None:
    values = yaml.safe_load((CONF / "helm" / f"redis-{name}.values.yaml").read_text())
    conf = directives((CONF / f"redis-{name}.conf").read_text())
    renamed = [each[1] for each in conf if each[0] == "rename-command"]
    # In a cluster the pod has an address of its own, and the chart disables commands by itself.
    common = [each for each in conf if each[0] not in ("bind", "rename-command")]
    assert directives(values["commonConfiguration"]) == common
    assert values["master"]["disableCommands"] == renamed
    assert values["master"]["persistence"]["enabled"] is (name == "index")
    if name == "index":
        assert values["replica"]["disableCommands"] == renamed
        assert renamed == list(FLUSHES)
    # The password is in a secret of the cluster, not here.
    assert values["auth"]["existingSecret"] == f"lake-{name}"
    assert "password" not in values["auth"]


# Jobs


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("job", CONF / "job.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def properties(text: str) -> dict[str, str]:
    """Spark's properties of a file."""
    lines = (line.strip() for line in text.splitlines())
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def test_the_databricks_job_installs_the_wheel_and_runs_the_script(job: ModuleType) -> None:
    bundle = yaml.safe_load((CONF / "databricks.yml").read_text())
    [artifact] = bundle["artifacts"].values()
    assert artifact["type"] == "whl"
    assert (CONF / artifact["path"]).resolve() == ROOT
    assert "pip wheel --no-deps --wheel-dir conf/dist ." in artifact["build"]
    [built] = artifact["files"]
    [found] = bundle["resources"]["jobs"].values()
    [task] = found["tasks"]
    [library] = task["libraries"]
    assert built["source"] == library["whl"] == f"dist/{WHEEL}"
    assert (CONF / task["spark_python_task"]["python_file"]).samefile(CONF / "job.py")
    assert [parameter["name"] for parameter in found["parameters"]] == ["day"]
    given = [each.replace("{{job.parameters.day}}", "2024-01-31") for each in task["spark_python_task"]["parameters"]]
    assert job.arguments(given).version == 20240131
    [cluster] = found["job_clusters"]
    assert cluster["job_cluster_key"] == task["job_cluster_key"]
    assert cluster["new_cluster"]["spark_env_vars"] == {"LAKE_URL": "{{secrets/lake/url}}"}
    spark = properties((CONF / "spark-defaults.conf").read_text())
    assert cluster["new_cluster"]["spark_conf"].items() <= spark.items()
    named = set(re.findall(r"\$\{var\.(\w+)\}", (CONF / "databricks.yml").read_text()))
    assert named == bundle["variables"].keys()


def test_the_emr_step_runs_what_the_bootstrap_script_installs(job: ModuleType) -> None:
    [step] = json.loads((CONF / "emr-step.json").read_text())
    script = (CONF / "emr-bootstrap.sh").read_text()
    args = step["Args"]
    at = args.index("/etc/lake/job.py")
    options = job.arguments(args[at + 1 :])
    assert (options.version, options.app, options.catalog) == (20240131, "users-daily", "user-{id}")
    assert f"'{WHEEL}'" in script
    for place in ("/etc/lake/job.py", "/etc/lake/spark-defaults.conf", str(options.url_file), "/opt/lake"):
        assert place in script
    assert args[args.index("--properties-file") + 1] == "/etc/lake/spark-defaults.conf"
    # Otherwise the cluster's own properties, class path and all, would not be read.
    assert "--load-spark-defaults" in args
    assert "spark.pyspark.python=/opt/lake/bin/python" in args


def test_shell_scripts_parse() -> None:
    for script in CONF.glob("*.sh"):
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_options_that_the_job_sets_exist() -> None:
    known = {camel_case(name) for name in BatchOptions.__dataclass_fields__}
    used = set(re.findall(r'\.option\("(\w+)"', (CONF / "job.py").read_text()))
    assert used >= {"url", "metricsPath", "catalogColumn", "catalogPrefix", "txnAppId", "txnVersion", "mergeType"}
    assert used <= known


def test_spark_hides_urls_by_these_properties() -> None:
    spark = properties((CONF / "spark-defaults.conf").read_text())
    options, names = (re.compile(spark[f"spark.{kind}.regex"]) for kind in ("sql.redaction.options", "redaction"))
    for name in BatchOptions.__dataclass_fields__.values():
        # Spark hands its options over in lower case.
        assert bool(options.search(camel_case(name.name).lower())) is name.metadata["secret"], name.name
    for name in ("spark.executorEnv.LAKE_URL", "spark.yarn.appMasterEnv.LAKE_SNAPSHOT_CACHE_URL", "a.password"):
        assert names.search(name), name


def test_the_example_of_a_setting_is_a_configuration() -> None:
    config = Config(json.loads((CONF / "lake.setting.example.json").read_text()))
    with_keys = Config({**config, "AccessKey": "a", "SecretKey": "s"})
    assert storage_of(with_keys, Options()).kind == "s3"
    # Credentials come from the role of the machine.
    assert not {"AccessKey", "SecretKey", "AESPwd"} & config.keys()


def test_no_file_holds_a_secret() -> None:
    # A URL with a password, an AWS key, or a value given to something that is called a secret.
    secret = re.compile(
        r"rediss?://[^\s@/]*:[^\s@/]+@|AKIA[0-9A-Z]{12,}|(?i:requirepass|aespwd|secretkey|masterauth)[ :=\"']+\w"
    )
    files = [path for path in CONF.rglob("*") if path.is_file() and path.suffix not in (".whl", ".pyc")]
    assert len(files) >= 10
    assert not [(path.name, found[0]) for path in files for found in secret.finditer(path.read_text())]


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    [built] = folder.iterdir()
    assert built.match(WHEEL)
    assert version("lake-spark") in built.name
    return built


@pytest.fixture(scope="module")
def fresh_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel, and with this environment's packages that are not the library."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-index", str(wheel)], check=True, capture_output=True, timeout=120)
    [packages] = folder.glob("lib/python*/site-packages")
    # After the wheel's own. The .pth of an editable install is not read there, so the checkout stays out of sight.
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    return python


def isolated(environment: dict[str, str], python: Path) -> dict[str, str]:
    """The environment of a job that knows the wheel alone."""
    kept = {name: value for name, value in environment.items() if not name.startswith(("PYTHON", "LAKE_"))}
    return {**kept, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}


def test_the_wheel_brings_everything_the_library_reads(fresh_python: Path, tmp_path: Path) -> None:
    program = "import lake_spark, pyspark_lake, lake_spark.index.scripts as s; print(lake_spark.__file__, s._FOLDER)"
    environment = isolated(dict(os.environ), fresh_python)
    command = [str(fresh_python), "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    package, scripts = map(Path, ran.stdout.split())
    assert package.is_relative_to(fresh_python.parents[1])
    assert scripts == package.parent / "_lua"
    shipped = {path.relative_to(scripts): path.read_bytes() for path in scripts.rglob("*.lua")}
    assert shipped == {path.relative_to(ROOT / "lua"): path.read_bytes() for path in (ROOT / "lua").rglob("*.lua")}


def submit(job_arguments: list[str], python: Path, environment: dict[str, str], folder: Path) -> Any:
    """Run the job with spark-submit; what it says of itself."""
    home = Path(pyspark.__file__).parent
    local = folder / "local.conf"
    # What only a test needs is added to the file as it is.
    own = f"spark.ui.enabled false\nspark.driver.host {LOOPBACK}\nspark.driver.bindAddress {LOOPBACK}\n"
    local.write_text((CONF / "spark-defaults.conf").read_text() + own)
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--properties-file", str(local)]
    ran = subprocess.run(
        [*command, str(CONF / "job.py"), *job_arguments],
        cwd=folder,
        env={**isolated(environment, python), "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    [summary] = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    return json.loads(summary)


@pytest.mark.timeout(600)
def test_the_job_applies_each_version_once_with_the_wheel_alone(
    fresh_python: Path,
    spark_environment: dict[str, str],
    index: RedisServer,
    file_config: dict[str, str],
    tmp_path: Path,
) -> None:
    (tmp_path / "url").write_text(f"{index.url}\n")

    def run(day: str, rows: list[dict[str, Any]]) -> Any:
        source = tmp_path / f"day={day}.json"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = [f"--input={source}", "--catalog=user-{id}", "--app=users-daily", f"--version={day}"]
        given += [f"--url-file={tmp_path / 'url'}", f"--metrics-path={tmp_path / 'figures'}"]
        return submit(given, fresh_python, spark_environment, tmp_path)

    with Lake(index.url) as lake:
        lake.update_config({**file_config, "Name": "job"})
        lake.write("user-3", {"name": "Carol", "visits": 1})
        rows = [{"id": n, "name": None if n == 3 else f"user {n}", "visits": 2} for n in range(20)]
        told = {"app": "users-daily", "version": 20240131, "documents": 20, "errors": 0}
        assert run("2024-01-31", rows) == {**told, "rows": 20}
        versions = {name: lake.list(name).version for name in lake.catalogs()}
        # The same version with other rows: what was in stays as it is.
        assert run("2024-01-31", [{"id": 3, "visits": 99}]) == {**told, "rows": 1}
        assert lake.read_map("user-3") == {"name": "Carol", "visits": 2}
        assert lake.read_map("user-19") == {"name": "user 19", "visits": 2}
        assert versions == {name: lake.list(name).version for name in lake.catalogs()}
    figures = [json.loads(path.read_text()) for path in (tmp_path / "figures").iterdir()]
    assert {line["outcome"] for line in figures if line["kind"] == "job"} == {"done"}
