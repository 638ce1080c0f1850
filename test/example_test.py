"""The ImageNet example as a user meets it: its scripts are run, and what they print is read."""

import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "imagenet"
SHELL_SCRIPT = EXAMPLE / "test" / "train_performance_1p.sh"
MAKE_JPEGS = ROOT / "tools" / "make_jpeg_folder.py"
JPEG_OPTIONS = ["--classes", 3, "--per-class", 4, "--size", 48]
GET_EFFICIENTNET = ROOT / "tools" / "get_efficientnet.py"
SMALL = ["--image-size", "32", "--threads", "1"]


def run(*command: object, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )


def python(script: object, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
    return run(sys.executable, script, *arguments, **variables)


def train(*arguments: object) -> str:
    """The output of a training run that succeeded."""
    done = python(EXAMPLE / "main.py", *SMALL, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[str]:
    return re.findall(r"LOSS (\S+)", output)


def load_module(path: Path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", autouse=True)
def efficientnet_is_there():
    missing = not (EXAMPLE / "efficientnet_pytorch" / "model.py").is_file()
    if missing and importlib.util.find_spec("efficientnet_pytorch") is None:
        pytest.fail("efficientnet_pytorch is missing: run python tools/get_efficientnet.py")


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "jpegs"
    done = python(MAKE_JPEGS, folder, *JPEG_OPTIONS)
    assert done.returncode == 0, done.stderr
    assert "15 JPEGs of 3 classes" in done.stdout
    return folder


# Training


def test_a_step_line_and_the_summary_have_every_figure():
    output = train("-b", 2, "--steps", 3)
    number = r"\d+\.\d+"
    step = (
        rf"Epoch: \[0\]\[3/3\]  TIME +{number} \( *{number}\)  DATA +{number} \( *{number}\)  "
        rf"LOSS {number} \({number}\)  images/s {number}"
    )
    assert re.search(step, output)
    assert "no DATA folder given" in output
    assert re.search(rf"Epoch: \[0\] took {number} s, {number} images/s with DATA", output)
    assert re.search(rf"TIME +mean {number} s +median {number} s +\(2 steps without", output)
    assert re.search(rf"images/s +{number}", output.splitlines()[-1])


def test_images_per_second_is_batch_over_median_time():
    lines = train("-b", 2, "--steps", 4, "-j", 0).splitlines()
    median = float(re.search(r"TIME .*median (\S+) s", lines[-3]).group(1))
    assert float(lines[-1].split()[1]) == pytest.approx(2 / median, rel=0.01)


def test_a_seed_gives_the_same_losses_and_another_seed_others():
    arguments = ["-b", 2, "--steps", 3, "--epochs", 2, "--exact-loss", "--seed"]
    first, second, other = (losses(train(*arguments, seed)) for seed in (5, 5, 6))
    assert len(first) == 6
    assert first == second
    assert not set(first) & set(other)


def test_losses_on_jpegs_do_not_depend_on_the_workers(jpegs):
    arguments = [jpegs, "-b", 4, "--epochs", 2, "--exact-loss", "-j"]
    alone = train(*arguments, 0)
    assert "12 training images of 3 classes, 3 validation images" in alone
    assert len(losses(alone)) == 6
    assert losses(train(*arguments, 2, "--worker-start", "fork")) == losses(alone)
    assert losses(train(*arguments, 1, "--worker-start", "spawn")) == losses(alone)


def test_a_folder_of_classes_without_train_and_val_works(jpegs):
    output = train(jpegs / "train", "-b", 4, "--steps", 1)
    assert "12 training images of 3 classes\n" in output
    assert "[1/1]" in output


def test_bf16_autocast_trains_with_other_losses():
    arguments = ["-b", 2, "--steps", 2, "--exact-loss", "-j", 0]
    plain, bf16 = train(*arguments), train(*arguments, "--amp", "bf16")
    assert "bf16 autocast" in bf16
    assert losses(plain) != losses(bf16)
    assert [float(x) for x in losses(bf16)] == pytest.approx(
        [float(x) for x in losses(plain)], rel=0.2
    )


def test_two_processes_train_as_one_and_one_of_them_prints(jpegs):
    done = run(
        *[sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0"],
        *["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", EXAMPLE / "main.py", *SMALL],
        *[jpegs, "-b", 3, "-j", 0, "--evaluate"],
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\[\d/\d\]", done.stdout) == ["[1/2]", "[2/2]"]
    assert done.stdout.count("Validation:") == 1


def test_profile_writes_a_chrome_trace_with_the_operators(tmp_path):
    trace = tmp_path / "trace.json"
    output = train("-b", 2, "--steps", 3, "-j", 0, "--profile", trace)
    names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    # 49 Swish in the forward pass and as many in the backward pass, 16 gates, in two steps.
    assert names.count("aten::sigmoid") == 2 * (49 + 49 + 16)
    assert "ProfilerStep#1" in names and "ProfilerStep#2" in names
    assert "trace of steps 2 to 3" in output


def test_profile_of_a_single_step_is_written_too(tmp_path):
    trace = tmp_path / "trace.json"
    assert "trace of steps 1 to 1" in train("-b", 2, "--steps", 1, "-j", 0, "--profile", trace)
    assert "aten::sigmoid" in trace.read_text()


def test_profiles_before_and_after_the_published_edit_compare(tmp_path):
    """Swish by hand against F.silu: what became what at how many places, two steps of 49 calls."""
    if not (EXAMPLE / "efficientnet_pytorch").is_dir():
        pytest.skip("efficientnet_pytorch is installed, not in the example's folder")
    for side in ("before", "after"):
        shutil.copytree(EXAMPLE, tmp_path / side, ignore=shutil.ignore_patterns(".work"))
    utils = tmp_path / "after" / "efficientnet_pytorch" / "utils.py"
    text = utils.read_text()
    assert text.count("SwishImplementation.apply(x)") == 1
    utils.write_text(text.replace("SwishImplementation.apply(x)", "torch.nn.functional.silu(x)"))
    for side in ("before", "after"):
        done = python(tmp_path / side / "main.py", *SMALL, "-b", 2, "--steps", 3, "-j", 0,
                      "--profile", tmp_path / f"{side}.json")  # fmt: skip
        assert done.returncode == 0, done.stderr
    done = run(os.environ["OPFUSE_BIN"], "compare", tmp_path / "before.json",
               tmp_path / "after.json", "--batch", 2, "--top", 30)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout
    assert re.search(r"98 x +aten.sigmoid, aten.mul.Tensor -> aten.silu ", found), found
    assert re.search(r"TIME \(profiled\)", found) and "images/s" in found
    assert re.search(r"aten.silu +0 +98 .* new", found)
    assert re.search(r"aten.silu_backward +0 +98 .* new", found)
    # 49 Swish and 16 gates, forward and backward, in two steps; the gates stay.
    assert re.search(r"aten.sigmoid +228 +32 ", found)


# Messages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "resnet50"], "invalid choice: 'resnet50'"),
        (["--batch-size", "0"], "--batch-size: expected 1 or more, found 0"),
        (["--profile", "/no/such/folder/t.json"], "there is no folder /no/such/folder"),
        (["--profile", "t.json", "--epochs", "0"], "--epochs 0 has none"),
        (["--device", "abacus"], "expected cpu or cuda[:N], found 'abacus'"),
        (["/no/such/images"], "/no/such/images: no such folder"),
        ([EXAMPLE / "test"], "no JPEGs found; expected FOLDER/<class>/<image>.jpg"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    done = python(EXAMPLE / "main.py", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_too_few_images_for_a_batch_are_named(jpegs):
    done = python(EXAMPLE / "main.py", *SMALL, jpegs, "-b", 13)
    assert done.returncode == 2
    assert "12 training images do not fill one step of 13" in done.stderr


def test_an_image_that_cannot_be_read_is_named(jpegs, tmp_path):
    folder = tmp_path / "class_a"
    folder.mkdir()
    whole = (jpegs / "train" / "class_000" / "00000.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    done = python(EXAMPLE / "main.py", *SMALL, tmp_path, "-b", 1, "-j", 1)
    assert done.returncode == 2
    assert f"{folder / 'cut.jpg'}: cannot be read as a JPEG" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_efficientnet_says_how_to_get_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules['efficientnet_pytorch'] = None\n"
    )
    done = python(EXAMPLE / "main.py", *SMALL, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "make demo" in done.stderr
    assert "pip install efficientnet_pytorch==0.7.1" in done.stderr
    assert "Traceback" not in done.stderr


# Inference


def test_infer_runs_the_weights_that_training_saved(jpegs, tmp_path):
    weights = tmp_path / "model.pt"
    train(jpegs, "-b", 4, "-j", 0, "--save", weights)
    command = [EXAMPLE / "infer.py", *SMALL, jpegs, "-b", 3, "-j", 0]
    fresh, saved = python(*command), python(*command, "--checkpoint", weights)
    assert fresh.returncode == saved.returncode == 0, fresh.stderr + saved.stderr
    outputs = [re.findall(r"output (\S+)", done.stdout) for done in (fresh, saved)]
    assert len(outputs[0]) == len(outputs[1]) == 1
    assert outputs[0] != outputs[1]
    assert re.search(r"^images/s  \d+\.\d+", saved.stdout, re.MULTILINE)


def test_infer_names_a_checkpoint_that_does_not_fit(tmp_path):
    done = python(EXAMPLE / "infer.py", *SMALL, "--checkpoint", tmp_path / "none.pt")
    assert done.returncode != 0
    assert "none.pt" in done.stderr
    assert "Traceback" not in done.stderr


# The shell script


def shell(*arguments: object) -> subprocess.CompletedProcess:
    return run("bash", SHELL_SCRIPT, *arguments)


def test_shell_script_prints_the_final_figures_of_its_log(jpegs, tmp_path):
    options = ["--batch_size=4", "--steps=3", "--image_size=32", "--workers=0"]
    done = shell(f"--data_path={jpegs}", f"--output={tmp_path}", *options)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "train_performance_1p.log").read_text()
    final = re.search(r"^Final Performance images/sec : (\d+\.\d+)$", done.stdout, re.MULTILINE)
    assert re.search(rf"^images/s  {final.group(1)} ", log, re.MULTILINE)
    assert re.search(r"^E2E Training Duration sec : \d+$", done.stdout, re.MULTILINE)
    assert done.stdout == log
    assert len(losses(log)) == 3


def test_shell_script_says_that_it_generates_images(tmp_path):
    done = shell("--batch_size=2", "--steps=1", "--image_size=32", f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No --data_path given: training on generated images.\n")
    assert "Final Performance images/sec : " in done.stdout


def test_shell_script_keeps_the_status_of_a_run_that_failed(tmp_path):
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'images/s  99.00'\nexit 7\n")
    failing.chmod(0o755)
    done = run("bash", SHELL_SCRIPT, f"--output={tmp_path}", PYTHON=str(failing))
    assert done.returncode == 7
    assert "main.py ended with status 7" in done.stderr
    assert "Final Performance" not in done.stdout


@pytest.mark.parametrize("signal_all", [True, False], ids=["ctrl_c", "term_to_the_shell"])
def test_shell_script_ends_its_training_on_a_signal(tmp_path, signal_all):
    training = tmp_path / "python"
    training.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho started\nexec sleep 60\n")
    training.chmod(0o755)
    process = subprocess.Popen(
        ["bash", SHELL_SCRIPT, f"--output={tmp_path}"],
        env={**os.environ, "PYTHON": str(training)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.stdout.readline() != "started\n":
        assert process.poll() is None
    if signal_all:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGTERM)
    _, messages = process.communicate(timeout=30)
    status = 128 + (signal.SIGINT if signal_all else signal.SIGTERM)
    assert process.returncode == status
    assert f"main.py ended with status {status}" in messages
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_shell_script_shows_the_message_of_main(tmp_path):
    done = shell("--arch=resnet50", f"--output={tmp_path}")
    assert done.returncode == 2
    assert "invalid choice: 'resnet50'" in done.stdout
    assert "Final Performance" not in done.stdout


def test_shell_script_refuses_an_unknown_option(tmp_path):
    done = shell("--batchsize=4", f"--output={tmp_path}")
    assert done.returncode == 2
    assert "unknown argument '--batchsize=4'" in done.stderr
    assert list(tmp_path.iterdir()) == []


# The pieces


def test_crop_boxes_lie_inside_the_image_and_keep_their_bounds():
    data = load_module(EXAMPLE / "data.py")
    rng = random.Random(0)
    for _ in range(2000):
        width, height = rng.randint(1, 600), rng.randint(1, 600)
        for box in (data.random_crop_box(width, height, rng), data.center_crop_box(width, height)):
            left, top, right, bottom = box
            assert 0 <= left < right <= width and 0 <= top < bottom <= height
    boxes = [data.random_crop_box(400, 400, rng) for _ in range(500)]
    areas = [(right - left) * (bottom - top) / 400**2 for left, top, right, bottom in boxes]
    ratios = [(right - left) / (bottom - top) for left, top, right, bottom in boxes]
    assert 0.07 < min(areas) < 0.15 and 0.85 < max(areas) <= 1
    assert 0.74 < min(ratios) < 0.78 and 1.28 < max(ratios) < 1.35


def test_pixels_are_normalized_as_for_imagenet():
    from PIL import Image

    data = load_module(EXAMPLE / "data.py")
    image = Image.new("RGB", (2, 1))
    image.putpixel((0, 0), (255, 0, 51))
    pixels = data.to_normalized_tensor(image)
    assert pixels.shape == (3, 1, 2) and pixels.is_contiguous()
    expected = [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    assert pixels[:, 0, 0].tolist() == pytest.approx(expected, rel=1e-6)


def test_generated_images_can_be_told_apart_by_class():
    data = load_module(EXAMPLE / "data.py")
    images = data.GeneratedImages(40, classes=2, size=16, seed=0, train=True)
    samples = [images[i] for i in range(40)]
    same, other = [], []
    for x, label in samples[1:]:
        distance = (x - samples[0][0]).square().mean().item()
        (same if label == samples[0][1] else other).append(distance)
    assert same and other
    assert max(same) < min(other)


def test_the_jpeg_folder_is_the_same_for_a_seed(jpegs, tmp_path):
    command = [MAKE_JPEGS, tmp_path / "again", *JPEG_OPTIONS]
    assert python(*command).returncode == 0
    files = sorted(path.relative_to(jpegs) for path in jpegs.rglob("*.jpg"))
    assert len(files) == 15
    for file in files:
        assert (jpegs / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    refused = python(*command)
    assert refused.returncode == 2
    assert "is not an empty folder" in refused.stderr


def test_an_archive_with_another_hash_is_refused(tmp_path):
    archive = tmp_path / "efficientnet_pytorch-0.7.1.tar.gz"
    archive.write_bytes(b"something else")
    target = tmp_path / "target"
    done = python(GET_EFFICIENTNET, "--archive", archive, "--target", target)
    assert done.returncode == 1
    assert "expected 00b9b261effce59d2d47aae2ad238c29a2a65175" in done.stderr
    assert not target.exists()


def test_an_edited_efficientnet_is_left_alone(tmp_path):
    for name in ("__init__.py", "model.py", "utils.py"):
        (tmp_path / name).write_text("# edited\n")
    done = python(GET_EFFICIENTNET, "--target", tmp_path)
    assert done.returncode == 0
    assert "is already in" in done.stdout
    assert (tmp_path / "utils.py").read_text() == "# edited\n"


def test_the_example_does_not_know_the_tool_that_tunes_it():
    scripts = [*EXAMPLE.glob("*.py"), SHELL_SCRIPT]
    assert len(scripts) == 5
    for script in scripts:
        assert "opfuse" not in script.read_text().lower(), script
