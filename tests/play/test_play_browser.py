"""The playground in a real browser: Chromium, driven by playwright.

`make browser` installs what is needed. The model is tiny and random, except for the pictures of docs/play.md: they
are drawn with the built-in model when PLAY_PICTURES names a folder.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
from tiny_play import TEXT, Client, serving, tiny_pipe

from crocodil import Crocodil, Method

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)
pytest.importorskip("uvicorn", reason="the extra [play] is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")

AXE = os.environ.get("AXE_CORE", "")  # axe.min.js
PICTURES = os.environ.get("PLAY_PICTURES", "")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.browser
VIEWS = ("generate", "complete", "autoencode", "interpolate", "steer")


@pytest.fixture(scope="module")
def pipe():
    return tiny_pipe()


@pytest.fixture(scope="module")
def client(pipe):
    with serving(pipe) as client:
        yield client


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Page:
    """A page of the playground in a context of its own, and every address that it asked for."""

    def __init__(self, browser, address: str, **options) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(20_000)
        self.asked, self.errors = [], []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.open(address)

    def open(self, address: str) -> None:
        self.tab.goto(address)
        self.tab.locator("[role=tab][aria-selected=true]").wait_for()

    def view(self, name: str) -> None:
        self.tab.locator(f"#tab-{name}").click()

    def fill(self, view: str, **values: object) -> None:
        for name, value in values.items():
            self.tab.locator(f"#{view}-{name}").fill(str(value))

    def run(self, view: str) -> None:
        self.tab.locator(f"#view-{view} button.main").click()
        self.done(view)

    def done(self, view: str, timeout: float = 20_000) -> None:
        self.tab.locator(f"#view-{view} [role=status]", has_text=re.compile("^done$")).wait_for(timeout=timeout)

    def texts(self, view: str) -> list[str]:
        return self.tab.locator(f"#view-{view} pre").all_text_contents()

    def slide(self, name: str, *keys: str) -> None:
        self.tab.locator(f"#{name}").focus()
        for key in keys:
            self.tab.keyboard.press(key)


@pytest.fixture
def page(browser, client: Client):
    page = Page(browser, client.address)
    yield page
    page.context.close()
    assert page.errors == []
    assert all(address.startswith((client.address, "data:", "blob:")) for address in page.asked)


def shown(text: str) -> str:
    """A text as its canvas shows it: dots for the end of the text."""
    return text.rstrip("·")


def test_generate_shows_the_methods_side_by_side_call_by_call(page, pipe):
    page.fill("generate", seed=5, length=32, calls=6)
    assert not page.tab.locator("#generate-call").is_visible()
    page.run("generate")
    for text, method in zip(page.texts("generate"), Method, strict=True):
        assert shown(text) == pipe.generate(1, method=method, seed=5, length=32, calls=6).texts[0]
    assert page.tab.locator("#view-generate .ticks .refresh").count() == 1
    page.slide("generate-call", "ArrowLeft", "ArrowLeft")
    costs = page.tab.locator("#view-generate .cost").all_text_contents()
    assert "call 4 of 6" in costs[0]
    assert "registers drawn again before this call" in costs[2]
    assert all(re.search(r"NFE [\d.]+, [\d.]+ by FLOPs, [\d.]+ s", cost) for cost in costs)
    assert page.tab.locator("#view-generate .cell-h").count()
    assert page.tab.locator("#view-generate .cell-n").count()
    title = page.tab.locator("#view-generate .cell-n:not(.end)").first.get_attribute("title")
    assert re.fullmatch(r'position \d+: ".*", since call 4, confidence [\d.]+%', title)
    page.slide("generate-call", "Home")
    assert all(set(text) <= set("░\n\t") for text in page.texts("generate"))
    assert page.tab.locator("#view-generate pre span").first.get_attribute("title") == "position 1: hidden"


def test_complete_shows_markup_and_special_tokens_as_text_and_says_when_it_ends_early(page):
    harmful = "<img src=x onerror=alert(1)>\n<|mask|>"
    page.view("complete")
    page.fill("complete", prefix=harmful, length=48, calls=40)
    page.run("complete")
    assert page.texts("complete")[0].startswith(harmful)
    assert page.tab.locator("main img").count() == 0
    cost = page.tab.locator("#view-complete .cost").text_content()
    ended = re.match(r"ended after (\d+) of 40 calls, as nothing was hidden any more: NFE", cost)
    assert ended, cost
    assert page.tab.locator("#complete-call").get_attribute("aria-valuetext") == "call {0} of {0}".format(ended[1])
    page.slide("complete-call", "ArrowLeft")
    assert page.tab.locator("#view-complete .cost").text_content().startswith(f"call {int(ended[1]) - 1} of 40: ")


def test_autoencode_goes_from_coarse_to_fine_and_marks_the_difference(page, pipe):
    page.view("autoencode")
    page.fill("autoencode", text=TEXT, calls=2)
    page.run("autoencode")
    assert "6 of 6" in page.tab.locator("#view-autoencode output").text_content()
    assert "character error rate" in page.tab.locator("#view-autoencode .cost").text_content()
    assert page.tab.locator("#view-autoencode pre del").count()
    page.slide("autoencode-registers", "ArrowLeft")
    page.tab.locator("#view-autoencode output", has_text="4 of 6").wait_for()
    page.tab.locator("#view-autoencode pre del").first.wait_for()
    added = page.tab.locator("#view-autoencode pre ins, #view-autoencode pre > span").all_text_contents()
    expected = pipe.autoencode([TEXT], num_registers=4, calls=2).texts[0]
    assert "".join(added).replace("↵", "") == expected
    page.fill("autoencode", text=TEXT * 3)  # is cut
    page.run("autoencode")
    given = page.tab.locator("#view-autoencode pre del, #view-autoencode pre > span").all_text_contents()
    assert "".join(given).replace("↵", "") == pipe.fitting(TEXT * 3)[0]


def test_interpolate_moves_from_the_first_text_to_the_second(page, pipe):
    page.view("interpolate")
    page.fill("interpolate", first=TEXT, second="x = 1", steps=3, calls=2)
    page.run("interpolate")
    expected = pipe.interpolate(TEXT, "x = 1", 3, calls=2).texts
    for text, key in zip(expected, ("Home", "ArrowRight", "End"), strict=True):
        page.slide("interpolate-mix", key)
        assert shown(page.texts("interpolate")[0]) == text


def test_steer_changes_the_text_beneath_the_strip(page):
    page.view("steer")
    page.fill("steer", length=32, calls=4)
    page.run("steer")
    registers = page.tab.locator("#view-steer .strip button")
    assert registers.count() == 6
    before = shown(page.texts("steer")[0])
    for mode, words in (("redrawn", "register 1: redrawn"), ("noised", "register 1: noised")):
        registers.first.click()
        page.tab.locator(f"#view-steer .strip button.{mode}").wait_for()
        page.done("steer")
        assert registers.first.get_attribute("aria-label") == words
    assert page.tab.locator("#view-steer pre ins").count()
    registers.first.click()  # held again
    page.tab.locator("#view-steer .strip .held").nth(5).wait_for()
    page.done("steer")
    kept = page.tab.locator("#view-steer pre ins, #view-steer pre > span").all_text_contents()
    assert "".join(kept).replace("↵", "") == before


def test_a_link_holds_a_setting_but_no_token(browser, pipe):
    with serving(pipe, token="secret") as client:
        page = Page(browser, f"{client.address}#token=secret", permissions=["clipboard-read", "clipboard-write"])
        page.view("complete")
        page.fill("complete", prefix="a & b = #1", length=24, calls=2, seed=7)
        page.run("complete")
        page.tab.locator("#view-complete button", has_text="Copy link").click()
        link = page.tab.evaluate("navigator.clipboard.readText()")
        assert "secret" not in link
        page.tab.locator("#view-complete .lane button", has_text="Copy").click()
        copied = page.tab.evaluate("navigator.clipboard.readText()")
        assert copied == shown(page.texts("complete")[0])
        with page.tab.expect_download() as download:
            page.tab.locator("#view-complete .lane button", has_text="Download").click()
        assert Path(download.value.path()).read_text() == copied
        second = page.context.new_page()
        second.goto(link)
        second.locator("#model", has_text="token").wait_for()  # another tab has no token
        page.open(link)
        page.tab.reload()
        assert page.tab.locator("#complete-prefix").input_value() == "a & b = #1"
        assert page.tab.locator("#complete-seed").input_value() == "7"
        page.context.close()


def test_a_wrong_input_is_told_beside_its_field(page):
    page.fill("generate", length=4096)
    page.tab.keyboard.press("Control+Enter")
    error = page.tab.locator("#generate-length-error", has_text="not 4096")
    error.wait_for()
    assert page.tab.locator("#generate-length").get_attribute("aria-invalid") == "true"
    page.view("autoencode")
    page.tab.locator("#autoencode-text").evaluate("(node) => { node.value = '<'.repeat(1_000_000); }")
    page.tab.locator("#view-autoencode button.main").click()
    page.tab.locator("#autoencode-text-error", has_text="1,000,000 characters are too many").wait_for()


def test_a_run_can_be_stopped_and_two_browsers_do_not_mix(page, browser, client, pipe):
    other = Page(browser, client.address)
    page.fill("generate", seed=1, length=48, calls=48)
    page.tab.locator("#view-generate button.main").click()
    page.tab.locator("#view-generate .cell-n").first.wait_for()
    other.fill("generate", seed=2, length=32, calls=2)
    page.tab.keyboard.press("Escape")
    assert page.tab.locator("#view-generate [role=status]").text_content() == "stopped"
    other.run("generate")
    assert (
        shown(other.texts("generate")[0]) == pipe.generate(1, method="base", seed=2, length=32, calls=2).texts[0]
    )
    other.context.close()


def test_it_works_on_a_phone_in_the_dark_and_by_keyboard(browser, client):
    page = Page(browser, client.address, color_scheme="dark")
    page.tab.set_viewport_size({"width": 360, "height": 740})
    page.tab.locator("#tab-generate").focus()
    for view in VIEWS:
        assert page.tab.locator(f"#view-{view}").is_visible()
        width = page.tab.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"{view} is {width} pixels wide"
        page.tab.keyboard.press("ArrowRight")
    background = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(15, 23, 34)"
    page.context.close()


@pytest.mark.skipif(not Path(AXE).is_file(), reason="AXE_CORE does not name axe.min.js: make browser")
def test_axe_finds_no_fault_of_accessibility_in_light_and_dark(browser, client):
    page = Page(browser, client.address, color_scheme="light")
    page.tab.evaluate(Path(AXE).read_text())
    for view in VIEWS:
        page.view(view)
        if view in ("generate", "complete", "steer"):
            page.fill(view, length=32)
        page.fill(view, calls=4)
        page.run(view)
        page.slide(f"{view}-call", "ArrowLeft", "ArrowLeft")
        for scheme, rules in (("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")):
            page.tab.emulate_media(color_scheme=scheme)
            found = page.tab.evaluate(f"axe.run({rules})")["violations"]
            assert [(fault["id"], [node["html"][:120] for node in fault["nodes"]]) for fault in found] == []
    page.context.close()


def test_the_exported_page_plays_its_runs_from_disk(browser, pipe, tmp_path):
    from crocodil.play.export import export
    from crocodil.play.static_page import about

    known = about(pipe, "tiny")
    for values in known["defaults"].values():
        values |= {"calls": 2} | ({"steps": 2} if "steps" in values else {})
    export(pipe, tmp_path / "site", known=known, on_run=lambda *_: None)
    page = Page(browser, (tmp_path / "site" / "index.html").as_uri())
    for view in VIEWS:
        page.view(view)
        page.done(view)
        assert page.texts(view)[0]
    page.tab.locator("#steer-recorded").select_option(label="register 1 drawn again")
    page.tab.locator("#view-steer .strip .redrawn").wait_for()
    assert all(address.startswith(("file:", "data:")) for address in page.asked)
    assert page.errors == []
    page.context.close()


# ---------------------------------------------------------------- pictures of docs/play.md


@pytest.mark.slow
@pytest.mark.skipif(not PICTURES, reason="PLAY_PICTURES names no folder to write to")
def test_pictures_of_the_built_in_model(browser, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="pillow makes the pictures small")

    def keep(page: Page, name: str) -> None:
        page.tab.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        image.open(tmp_path / f"{name}.png").convert("RGB").save(Path(PICTURES) / f"{name}.webp", lossless=True)

    with serving(Crocodil.from_pretrained(device="cpu"), "builtin") as client:
        page = Page(browser, client.address)
        page.tab.locator("#view-generate button.main").click()
        page.tab.locator("#view-generate .cell-n").first.wait_for(timeout=2000)  # the first picture
        page.done("generate", 300_000)
        page.slide("generate-call", *["ArrowLeft"] * 7)
        keep(page, "play-generate")
        page.view("steer")
        page.tab.locator("#view-steer button.main").click()
        page.done("steer", 300_000)
        page.tab.locator("#view-steer .strip button").first.click()
        page.tab.locator("#view-steer .strip .redrawn").wait_for(timeout=100_000)
        page.done("steer", 300_000)
        keep(page, "play-steer")
        page.context.close()
        phone = Page(browser, client.address, color_scheme="dark")
        phone.tab.set_viewport_size({"width": 400, "height": 800})
        phone.view("autoencode")
        phone.slide("autoencode-registers", *["ArrowLeft"] * 4)  # 32, 16, 8, 4
        phone.tab.locator("#view-autoencode button.main").click()
        phone.done("autoencode", 300_000)
        keep(phone, "play-autoencode")
        phone.context.close()
    assert sum(file.stat().st_size for file in Path(PICTURES).glob("play-*.webp")) < 300_000
