//! `holdfast serve` as a process: started with a configuration, killed by a failpoint or from outside, never left behind.

use super::OutsideError;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const READY_WITHIN: Duration = Duration::from_secs(20);
const ENDED_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// What a gateway says whose database does not answer.
const DATABASE_AWAY: &str = "error[DATABASE_UNREACHABLE]";

/// What is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// `holdfast`.
    pub program: PathBuf,
    /// `--data`.
    pub data: PathBuf,
    /// `--config`.
    pub config: PathBuf,
    /// Where its standard error goes.
    pub stderr: PathBuf,
    /// `name:n` of a failpoint that kills it.
    pub failpoint: Option<String>,
    /// Further words, and another `--listen` if they name one.
    pub arguments: Vec<String>,
    /// Further settings.
    pub environment: Vec<(String, String)>,
}

/// How a start went.
#[derive(Debug)]
pub enum Started {
    /// It serves.
    Serving(Gateway),
    /// Its failpoint killed it before.
    Killed,
}

/// A running gateway. Dropping it kills it.
#[derive(Debug)]
pub struct Gateway {
    /// `http://ADDRESS`.
    pub url: String,
    child: Child,
    stderr: PathBuf,
}

impl Launch {
    /// `serve` on any free port, with nothing else said.
    #[must_use]
    pub const fn new(program: PathBuf, data: PathBuf, config: PathBuf, stderr: PathBuf) -> Self {
        Self { program, data, config, stderr, failpoint: None, arguments: Vec::new(), environment: Vec::new() }
    }

    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// If it does not come to that.
    pub fn start(&self) -> Result<Gateway, OutsideError> {
        match self.try_start()? {
            Started::Serving(gateway) => Ok(gateway),
            Started::Killed => Err(OutsideError::answered("a gateway that does not start", "killed at its start")),
        }
    }

    /// Starts it and waits until it serves, or is killed by its failpoint on the way. One that ends because its database does
    /// not answer yet is started again, as a supervisor would: a busy disk keeps a database waiting for seconds.
    ///
    /// # Errors
    /// If neither comes.
    pub fn try_start(&self) -> Result<Started, OutsideError> {
        let began = Instant::now();
        loop {
            match self.start_once() {
                Err(failed) if began.elapsed() < READY_WITHIN && failed.to_string().contains(DATABASE_AWAY) => {}
                started => return started,
            }
        }
    }

    fn start_once(&self) -> Result<Started, OutsideError> {
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--data").arg(&self.data).arg("--config").arg(&self.config);
        if !self.arguments.iter().any(|word| word == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        // The upstream takes any key, but a provider must have one.
        command.env("UPSTREAM_KEY", "test").env_remove("HOLDFAST_FAILPOINT");
        command.envs(self.failpoint.iter().map(|failpoint| ("HOLDFAST_FAILPOINT", failpoint)));
        let stderr = File::create(&self.stderr).map_err(OutsideError::io("write what the gateway says"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let spawned = command.spawn();
        let mut child = spawned.map_err(OutsideError::io(format!("run {}", self.program.display())))?;
        let stdout = child.stdout.take().map(BufReader::new);
        let mut gateway = Gateway { url: String::new(), child, stderr: self.stderr.clone() };
        let (tell, told) = channel();
        // Reads on after the first line, so that the gateway never blocks on a full pipe; ends with it.
        thread::spawn(move || {
            for line in stdout.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                if let Some(url) = line.strip_prefix("listening on ") {
                    let _nobody_waits = tell.send(url.to_owned());
                }
            }
        });
        match told.recv_timeout(READY_WITHIN) {
            Ok(url) => gateway.url = url,
            Err(_) => {
                // Its output ends right before it does.
                let was_killed = self.failpoint.is_some() && gateway.wait_killed(ENDED_WITHIN).is_ok();
                gateway.kill();
                if was_killed {
                    return Ok(Started::Killed);
                }
                return Err(OutsideError::answered("a gateway that does not start", gateway.said()));
            }
        }
        Ok(Started::Serving(gateway))
    }
}

impl Gateway {
    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until it is killed by its failpoint.
    ///
    /// # Errors
    /// If it ends in another way, or not at all.
    pub fn wait_killed(&mut self, within: Duration) -> Result<(), OutsideError> {
        let until = Instant::now() + within;
        while Instant::now() < until {
            match self.ended() {
                Some(status) if status.signal() == Some(9) => return Ok(()),
                Some(status) => {
                    let said = format!("ended with {status}; it said: {}", self.said());
                    return Err(OutsideError::answered("the gateway", said));
                }
                None => thread::sleep(LOOK_EVERY),
            }
        }
        Err(OutsideError::TooLate { what: "the kill by a failpoint".to_owned(), seconds: within.as_secs() })
    }

    /// Has it stop in order.
    ///
    /// # Errors
    /// If it does not, or not in time.
    pub fn stop(&mut self, within: Duration) -> Result<(), OutsideError> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let told = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            told.map_err(|error| OutsideError::io("tell the gateway to stop")(error.into()))?;
        }
        let until = Instant::now() + within;
        while Instant::now() < until {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let said = format!("ended with {status}; it said: {}", self.said());
                    return Err(OutsideError::answered("the gateway", said));
                }
                None => thread::sleep(LOOK_EVERY),
            }
        }
        Err(OutsideError::TooLate { what: "the end of the gateway".to_owned(), seconds: within.as_secs() })
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _raced = self.child.kill();
        let _reaped = self.child.wait();
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}
