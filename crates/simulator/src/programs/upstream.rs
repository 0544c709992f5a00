//! `upstream`: a model provider for tests and benchmarks. See [`holdfast_simulator::upstream`].

use clap::Args;
use holdfast_simulator::upstream::{Bound, Keep, Options};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// A model provider for tests and benchmarks; prints `listening on http://…` and serves until SIGTERM.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The key that calls must have; none if not said.
    #[arg(long, env = "UPSTREAM_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Milliseconds before each event of a stream.
    #[arg(long, default_value_t = 0)]
    chunk_delay_ms: u64,
    /// Count calls, remember none.
    #[arg(long)]
    count_only: bool,
    /// Serve on so many threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let Arguments { listen, api_key, chunk_delay_ms, count_only, threads } = arguments;
    let keep = if count_only { Keep::Count } else { Keep::Details };
    let options = Options { listen, api_key, chunk_delay: Duration::from_millis(chunk_delay_ms), keep };
    let mut builder = if threads > 1 { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    builder.enable_all();
    if threads > 1 {
        builder.worker_threads(threads);
    }
    let served = builder.build().and_then(|runtime| runtime.block_on(serve(options)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("upstream: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: Options) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let bound = Bound::new(options).await?;
    writeln!(io::stdout(), "listening on {}", bound.url()?)?;
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    bound.serve(stop).await;
    Ok(())
}
