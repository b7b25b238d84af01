//! The operator: flags, logs, the running tree, signals.

use std::io::IsTerminal;
use std::process::ExitCode;

use egress_operator::args::{Args, LogFilter, LogFormat, Tokens};
use egress_operator::config::Config;
use egress_operator::{run, telemetry};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    egress_operator::crypto::install();
    let args = Args::read(std::io::stdout().is_terminal());
    let (format, filter) = match &args {
        Ok(args) => (args.log_format, args.log_level.clone()),
        Err(_) => (Some(LogFormat::Json), LogFilter::default()),
    };
    let telemetry = match telemetry::install(format, &filter) {
        Ok(telemetry) => telemetry,
        Err(error) => return run::refuse_to_start(&error),
    };
    match args.map_err(Into::into).and_then(configured).and_then(|config| run::run(config, &telemetry)) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(%error, "cannot start");
            ExitCode::from(2)
        }
    }
}

fn configured(args: Args) -> Result<Config, run::StartError> {
    let tokens = Tokens::from_env().map_err(Into::into);
    tokens.and_then(|tokens| Config::from_args(args, tokens)).map_err(|error| run::StartError::Config(Box::new(error)))
}
