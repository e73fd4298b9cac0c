"""JupyterLab in a real browser: a server on a copy of the lessons, a page with one notebook, and a stopwatch.

Every wait is for a condition, with a limit that only a dead server reaches; nothing sleeps for a guessed time.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

PATIENCE = 180  # seconds until a wait gives up
VIEW = {"width": 1300, "height": 1700}
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

# In the page: `lab()` is the open notebook; `seen` is when keys went down, pictures came and the read-out changed.
# A picture has come when it is decoded and the browser is about to paint it.
SCRIPT = """
window.lab = () => window.jupyterapp.shell.currentWidget;
window.cells = () => [...lab().content.model.cells].filter(c => c.type == 'code');
window.broken = () => [
    ...cells().flatMap(c => c.outputs.toJSON()).filter(o => o.output_type == 'error' || o.name == 'stderr')
        .map(o => o.evalue ? `${o.ename}: ${o.evalue}` : o.text),
    ...[...document.querySelectorAll('.jupyter-widgets-error-widget')].map(e => e.textContent)];
window.idle = () => lab().sessionContext.session.kernel.status == 'idle';
window.finished = () => broken().length > 0
    || idle() && cells().every(c => c.executionCount || !c.sharedModel.getSource().trim());
window.forget = () => {
    window.seen = {keys: [], frames: [], words: []};
    window.next = new Promise(resolve => { window.came = resolve; });
};
window.quiet = () => idle() && performance.now() - Math.max(0, ...Object.values(seen).flat()) > 500;
window.watch = panel => {
    if (panel.watched) return;
    panel.watched = true;
    const img = panel.querySelector('img.labkit-figure');
    img.addEventListener('load', async () => {
        await img.decode().catch(() => null);  // replaced meanwhile: the newer picture reports itself
        requestAnimationFrame(() => { seen.frames.push(performance.now()); came(true); });
    });
    new MutationObserver(() => seen.words.push(performance.now()))
        .observe(panel.querySelector('.labkit-readout'), {subtree: true, childList: true, characterData: true});
};
window.alone = async (handle, presses) => {  // press the keys here, with a pause between, and note the milliseconds
    window.alone.times = [];
    handle.focus();
    for (let key = 'ArrowRight'; alone.times.length < presses;) {
        const [now, last] = ['now', 'max'].map(part => +handle.getAttribute(`aria-value${part}`));
        key = now >= last ? 'ArrowLeft' : now <= 0 ? 'ArrowRight' : key;
        forget();
        handle.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
        await next;
        alone.times.push(seen.frames[0] - seen.keys[0]);
        await new Promise(resolve => setTimeout(resolve, 50));
    }
};
document.addEventListener('keydown', e => seen.keys.push(e.timeStamp), true);
forget();
"""


def chromium_path():
    """The browser: CHROMIUM when set, else Debian's. Raises RuntimeError with one sentence when there is none."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not path or not os.access(path, os.X_OK):
        wanted = f"CHROMIUM={path} is not a program" if path else "no chromium found"
        raise RuntimeError(f"The browser tests need chromium ({wanted}): apt install chromium, or set CHROMIUM=path.")
    return path


@contextlib.contextmanager
def browser():
    """A headless Chromium."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()


@contextlib.contextmanager
def free_browser(home):
    """The address of a headless Chromium that works on while no Playwright is connected."""
    flags = [*FLAGS, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={home / 'chromium'}"]
    flags.append("--window-size={width},{height}".format(**VIEW))
    process = subprocess.Popen([chromium_path(), *flags], stderr=subprocess.DEVNULL)
    port = home / "chromium" / "DevToolsActivePort"
    try:
        give_up = time.monotonic() + PATIENCE
        while not (port.exists() and port.read_text()):
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError("Chromium did not start")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def visit(chromium):
    """The browser at this address, for the time of a visit; its first context stays as it is left."""
    with sync_playwright() as playwright:
        yield playwright.chromium.connect_over_cdp(chromium)


def latencies_alone(chromium, address, name, control, presses):
    """Milliseconds from keydown to the new picture in a page that nobody watches.

    A browser under remote control reports every message of the kernel to its controller, pictures included, and on two
    cores that doubles what a learner would wait. Here the page presses the keys itself while nobody is connected.
    """
    with visit(chromium) as browser:
        notebook = Notebook(browser.contexts[0], address, name)
        if broken := notebook.run_all():
            raise RuntimeError(f"{name}: {broken}")
        panel, handle = notebook.panel(0), f".labkit-control-{control} .noUi-handle"
        panel.press(control, "ArrowLeft" if panel.position(control)[0] else "ArrowRight")  # the first stop has no left
        panel.settle()
        notebook.page.evaluate(
            f"() => {{ setTimeout(() => alone(document.querySelector('{handle}'), {presses}), 1000); }}"
        )
    time.sleep(1 + 0.3 * presses)
    with visit(chromium) as browser:
        (page,) = (page for page in browser.contexts[0].pages if page.url.endswith(name))
        page.wait_for_function(f"() => alone.times.length == {presses}", polling=1000)
        times = page.evaluate("() => alone.times")
        page.evaluate("() => lab().sessionContext.shutdown()")
        page.close()
    return times


@contextlib.contextmanager
def server(lessons, home):
    """The address of a JupyterLab that serves a copy of the folder `lessons`; everything it writes is in `home`."""
    folder = shutil.copytree(lessons, home / "lessons")
    import labkit.course

    places = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    quiet = {"JUPYTER_CONFIG_PATH": str(Path(labkit.course.__file__).parent / "jupyter")}  # as `labkit lab` does
    fixed = {
        "IPYTHONDIR": str(home / "ipython"),
        "LABKIT_PROFILE": "quick",
        "OMP_NUM_THREADS": "1",
        "LABKIT_STRICT": "0",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}"]
    command += ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--ServerApp.log_level=WARN"]
    address, log = f"http://127.0.0.1:{port}", home / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | places | quiet | fixed, stdout=output, stderr=output)
    try:
        _wait_for_answer(address, process, log)
        yield address
    finally:
        process.terminate()  # the server ends its kernels before it goes
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_answer(address, process, log):
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended while starting:\n{log.read_text()}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api", timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not answer within {PATIENCE} s:\n{log.read_text()}")


class Notebook:
    """One notebook, open in a page of its own, with a kernel that is ready."""

    def __init__(self, context, address, name):
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.goto(f"{address}/lab/workspaces/{Path(name).stem}/tree/{name}")
        self.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context")
        self.page.add_script_tag(content=SCRIPT)
        self.page.evaluate("""async () => {
            await lab().context.ready;
            await lab().sessionContext.ready;
            await lab().sessionContext.session.kernel.info;
        }""")

    def close(self):
        """End the kernel and close the page."""
        self.page.evaluate("() => lab().sessionContext.shutdown()")
        self.page.close()

    def run_all(self):
        """Run every cell; returns what went wrong: errors, lines on stderr, widgets that could not be drawn."""
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")  # not awaited
        self.page.wait_for_function("() => finished()", polling=100)
        return self.page.evaluate("() => broken()")

    def all_text(self, selector):
        """The text of every element that matches, in the order of the page."""
        return self.page.locator(selector).all_text_contents()

    def steady(self, place):
        """Bring a place into view and wait until it has stopped moving: cells get their height when they are seen."""
        before = None
        while before != (before := place.bounding_box()):
            place.scroll_into_view_if_needed()
            self.page.wait_for_timeout(200)

    def panel(self, number):
        """The panel with this number (from 0), once its picture is there."""
        return LivePanel(self.page, self.page.locator(".labkit-panel").nth(number))


class LivePanel:
    """A panel in the page, moved by keyboard."""

    def __init__(self, page, root):
        self.page, self.root = page, root
        root.locator("img.labkit-figure").wait_for(state="attached")
        root.scroll_into_view_if_needed()
        root.evaluate("panel => watch(panel)")

    def text(self):
        """The read-out under the picture."""
        return self.root.locator(".labkit-readout").inner_text().strip()

    def picture(self):
        """The address of the picture: a new one for every frame."""
        return self.root.locator("img.labkit-figure").get_attribute("src")

    def handle(self, name):
        return self.root.locator(f".labkit-control-{name} .noUi-handle")

    def position(self, name):
        """At which stop of the slider the handle is, and the number of the last stop."""
        now, last = (self.handle(name).get_attribute(f"aria-value{part}") for part in ("now", "max"))
        return round(float(now)), round(float(last))

    def box(self, name):
        """What the box beside the slider says."""
        return self.root.locator(f".labkit-control-{name} input[type=text]").input_value()

    def press(self, name, key):
        """Press an arrow key on the slider; returns the milliseconds from there to the new picture."""
        self.handle(name).focus()
        self.page.evaluate("() => forget()")
        self.page.keyboard.press(key)
        # The page tells when the picture is there. To ask again and again would take the time that is measured.
        wait = "() => Promise.race([next, new Promise(resolve => setTimeout(() => resolve(false), 60_000))])"
        if not self.page.evaluate(wait):
            position, last = self.position(name)
            raise AssertionError(f"{key} on {name} (stop {position} of {last}) brought no new picture")
        return self.page.evaluate("() => seen.frames[0] - seen.keys[0]")

    def settle(self):
        """Wait until the kernel has answered all that was sent, and nothing has changed for half a second."""
        for _ in range(2):  # the page holds back the newest value while the kernel works: it is sent after the answer
            self.page.evaluate("() => lab().sessionContext.session.kernel.requestKernelInfo()")
            self.page.wait_for_function("() => quiet()", polling=50)

    def latencies(self, name, presses=40):
        """`press` so many times, one after the other, along the slider and back from its end."""
        found, key = [], "ArrowRight"
        for _ in range(presses):
            position, last = self.position(name)
            key = "ArrowLeft" if position >= last else "ArrowRight" if position <= 0 else key
            found.append(self.press(name, key))
        return found

    def hold(self, name, key, presses=60):
        """Hold an arrow key down, then wait until all is quiet.

        Returns the number of pictures meanwhile, and the milliseconds from the last keydown to the last change.
        """
        self.handle(name).focus()
        self.page.evaluate("() => forget()")
        for _ in range(presses):
            self.page.keyboard.down(key)  # again and again without a release, as a held key repeats
        self.page.keyboard.up(key)
        self.settle()
        return self.page.evaluate(
            "() => [seen.frames.length, Math.max(0, ...seen.frames, ...seen.words) - seen.keys.at(-1)]"
        )

    def type(self, name, words):
        """Type into the box of a slider and confirm with Enter."""
        self.root.locator(f".labkit-control-{name} input[type=text]").fill(words)
        self.page.keyboard.press("Enter")
        self.settle()

    def reset(self):
        """Press the Reset button by keyboard."""
        self.root.locator("button.labkit-reset").focus()
        self.page.keyboard.press("Enter")
        self.settle()
