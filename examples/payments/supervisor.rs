//! The supervisor: starts the worker, hears what it tells, and starts it again
//! when it dies, with what is not answered.

use crate::cli::Options;
use crate::input::{self, Notification};
use crate::report::{Report, Stats};
use crate::shop::{GATEWAY, LEDGER, read_book};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

/// One crash is in the input. More, and something is wrong.
const STARTS_MAX: u32 = 5;

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let all = input::read(&options.input())?;
    let folder = options.folder();
    prepare(&folder, options.fresh || options.unsafely)?;
    let before = read_book(&folder.join(LEDGER))?.len();
    println!("{} notifications from {}", all.len(), options.input().display());
    println!("{} {}\n", if options.unsafely { "no store; books in" } else { "store in" }, folder.display());

    let started = Instant::now();
    let mut run = Run { all: &all, answered: vec![false; all.len()], report: Report::new(&all) };
    let progress = ProgressBar::new(all.len() as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} answered  {msg}");
    progress.set_style(style.map_err(|error| error.to_string())?);
    loop {
        run.report.starts += 1;
        let status = run.work(options, &progress)?;
        if status.success() && run.answered.iter().all(|answered| *answered) {
            break;
        }
        if status.code().is_some_and(|code| code == 2) {
            progress.finish_and_clear();
            return Ok(ExitCode::from(2)); // It has said why.
        }
        if run.report.starts == STARTS_MAX {
            return Err(format!("the worker ended {STARTS_MAX} times without answering all ({status})"));
        }
        progress.set_message("the worker died, and was started again");
    }
    progress.finish_and_clear();

    run.report.elapsed = started.elapsed();
    let ledger = read_book(&folder.join(LEDGER))?;
    run.report.credit(&ledger, before);
    run.report.charge(&read_book(&folder.join(GATEWAY))?);
    run.report.print(options.unsafely);
    Ok(if run.report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the folder. Of what is in it, removes only what this example made.
fn prepare(folder: &Path, fresh: bool) -> Result<(), String> {
    let failed = |path: &Path, what, error| format!("cannot {what} {}: {error}", path.display());
    fs::create_dir_all(folder).map_err(|error| failed(folder, "make the folder", error))?;
    for name in ["payments.keyonce", LEDGER, GATEWAY].into_iter().filter(|_| fresh) {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(&path, "remove", error));
            }
            _ => {}
        }
    }
    Ok(())
}

struct Run<'a> {
    all: &'a [Notification],
    answered: Vec<bool>,
    report: Report,
}

impl Run<'_> {
    /// One life of a worker.
    fn work(&mut self, options: &Options, progress: &ProgressBar) -> Result<ExitStatus, String> {
        let failed = |error: std::io::Error| format!("cannot run the worker: {error}");
        let mut worker = start(options).map_err(failed)?;
        let numbers: Vec<String> =
            (0..self.all.len()).filter(|n| !self.answered[*n]).map(|n| n.to_string()).collect();
        if let Some(mut stdin) = worker.stdin.take() {
            // Should it be dead already, its exit status says more than this would.
            let _ = stdin.write_all(numbers.join(" ").as_bytes());
        }
        let told = worker.stdout.take().expect("it was asked for");
        for line in BufReader::new(told).lines() {
            self.hear(&line.map_err(failed)?, progress);
        }
        worker.wait().map_err(failed)
    }

    fn hear(&mut self, line: &str, progress: &ProgressBar) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse::<usize>().ok()).unwrap_or_default();
        match words[0] {
            "answered" => {
                self.answered[number(1)] = true;
                self.report.answered(&self.all[number(1)], words[2], &words[3..].join(" "));
                progress.inc(1);
            }
            "interrupted" => self.report.rows[number(1)].interrupted += 1,
            "waited" => self.report.rows[number(1)].waited += 1,
            "found" => self.report.found += number(1),
            "stats" => {
                let [keys, replays, writes, commits] = [1, 2, 3, 4].map(number);
                self.report.stats = Some(Stats { keys, replays, writes, commits });
            }
            _ => {}
        }
    }
}

fn start(options: &Options) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--worker").arg("--input").arg(options.input());
    let folder = options.folder();
    if options.unsafely {
        command.arg("--unsafe").arg("--store").arg(folder.parent().unwrap_or(&folder));
    } else {
        command.arg("--store").arg(folder);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}
