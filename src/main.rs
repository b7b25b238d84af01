//! The operator: flags, logs, the running tree, signals.

use std::process::ExitCode;

use egress_operator::args::{Args, Tokens};
use egress_operator::config::Config;
use egress_operator::{run, telemetry};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = Args::read();
    let telemetry = match telemetry::install(args.log_format, &args.log_level) {
        Ok(telemetry) => telemetry,
        Err(error) => return run::refuse_to_start(&error),
    };
    let started = Tokens::from_env()
        .map_err(Into::into)
        .and_then(|tokens| Config::from_args(args, tokens))
        .map_err(|error| run::StartError::Config(Box::new(error)));
    match started.and_then(|config| run::run(config, &telemetry)) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(%error, "cannot start");
            ExitCode::from(2)
        }
    }
}
