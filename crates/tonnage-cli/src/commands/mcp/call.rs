// SPDX-License-Identifier: MIT OR Apache-2.0
//! One call of a tool: the command on its own thread, watched until it has answered.
//!
//! A job is ended, and waited for, when the client cancels the call, when its time is over or when the client is gone.
//! A command that only reads a file cannot be ended: it is left to itself.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, ProgressNotificationParam};
use rmcp::service::RequestContext;

use super::Running;
use super::output::JobText;
use super::tools::Question;
use crate::Surroundings;
use crate::output::{Answer, Failure, Reply};

/// How often a client receives progress, if it requested it.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// A call that is ready to run.
pub(super) struct Call {
    words: Vec<std::ffi::OsString>,
    surroundings: Surroundings,
    text: Option<JobText>,
    limit: Duration,
    progress: Receiver<String>,
    runs_a_job: bool,
    is_long: bool,
}

impl Call {
    /// Prepares a call; `home` is the folder of those that name none.
    pub(super) fn new(question: &Question, home: &Path) -> Result<Self, Failure> {
        let folder = question.directory();
        let folder = folder.map_or_else(|| home.to_owned(), |folder| home.join(folder));
        if !folder.is_dir() {
            return Err(Failure {
                message: format!("there is no folder {}", folder.display()),
                hint: Some("give the project's folder as an absolute path in directory".to_owned()),
            });
        }
        if question.command().is_some_and(<[String]>::is_empty) {
            return Err(Failure {
                message: "there is no command to run".to_owned(),
                hint: Some(
                    r#"give the program and its arguments in command, e.g. ["python", "train.py"]"#
                        .to_owned(),
                ),
            });
        }
        let runs_a_job = question.runs_a_job();
        let text = match runs_a_job.then(JobText::new).transpose() {
            Ok(text) => text,
            Err(error) => {
                return Err(Failure {
                    message: format!("cannot make a pipe for what the program prints: {error}"),
                    hint: Some("end other calls first".to_owned()),
                });
            }
        };
        let (sender, progress) = channel();
        let mut surroundings = Surroundings {
            environment: question.environment(),
            output: text.as_ref().map(JobText::path),
            progress: Some(sender),
            ..Surroundings::default()
        };
        let words = question.words(&folder);
        surroundings.folder = Some(folder);
        Ok(Self {
            words,
            surroundings,
            text,
            limit: question.time_limit(),
            progress,
            runs_a_job,
            is_long: question.is_long(),
        })
    }

    /// Runs it to its end.
    pub(super) async fn answer(
        self,
        running: &Arc<Running>,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResult {
        let Self {
            words,
            surroundings,
            text,
            limit,
            progress,
            runs_a_job,
            is_long,
        } = self;
        let stop = Arc::clone(&surroundings.stop);
        let job = runs_a_job.then(|| running.start(&stop));
        let mut work = tokio::task::spawn_blocking(move || {
            let reply = crate::ask_in(words, &surroundings);
            // Files of the job are closed before its last words are requested.
            drop((surroundings, job));
            (reply, text.map(JobText::end))
        });
        let begun = Instant::now();
        let mut told = tokio::time::interval(TOLD_EVERY);
        let mut out_of_time = false;
        let mut cancelled = false;
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                () = context.ct.cancelled(), if !cancelled => {
                    cancelled = true;
                    stop.store(true, Ordering::Relaxed);
                    if !runs_a_job {
                        return failed(&gave_up("the call was cancelled"));
                    }
                }
                _ = told.tick() => {
                    tell(context, progress.try_iter().last(), begun.elapsed()).await;
                    if begun.elapsed() >= limit && !out_of_time {
                        out_of_time = true;
                        stop.store(true, Ordering::Relaxed);
                        if !runs_a_job {
                            let seconds = limit.as_secs();
                            return failed(&gave_up(&format!("no answer within {seconds} s")));
                        }
                    }
                }
            }
        };
        let Ok((reply, printed)) = done else {
            return failed(&Failure {
                message: "this is a bug in tonnage".to_owned(),
                hint: Some("please report it with what is on the server's stderr".to_owned()),
            });
        };
        let mut result = match reply {
            Ok(reply) => {
                let json = reply.json.filter(|_| !is_long);
                answered(Reply { json, ..reply }, printed)
            }
            Err(failure) => failed(&failure),
        };
        if out_of_time {
            let text = format!(
                "The time limit of {} s was reached, and the program was ended: this is about what ran until then.\n\
                 next step: set stop_after, e.g. to 3steps, or a longer time_limit_seconds",
                limit.as_secs()
            );
            result.content.push(ContentBlock::text(text));
        }
        result
    }
}

/// The answer of a command.
fn answered(reply: Reply, printed: Option<String>) -> CallToolResult {
    let text = reply.text.unwrap_or_default();
    let mut content = vec![ContentBlock::text(text)];
    let failed = reply.answer == Answer::Failed;
    if let Some(printed) = printed.filter(|printed| failed && !printed.is_empty()) {
        let text = format!("The last lines that the program printed:\n{printed}");
        content.push(ContentBlock::text(text));
    }
    let mut result = if failed {
        CallToolResult::error(content)
    } else {
        CallToolResult::success(content)
    };
    // It is our own.
    result.structured_content = reply.json.and_then(|json| serde_json::from_str(&json).ok());
    result
}

/// Why there is no answer, and the next step.
pub(super) fn failed(failure: &Failure) -> CallToolResult {
    let mut text = failure.message.clone();
    if let Some(hint) = &failure.hint {
        text = format!("{text}\nnext step: {hint}");
    }
    CallToolResult::error(vec![ContentBlock::text(text)])
}

fn gave_up(why: &str) -> Failure {
    Failure {
        message: why.to_owned(),
        hint: Some("a large recording takes long: set a longer time_limit_seconds".to_owned()),
    }
}

/// Passes on the latest progress, to a client that requested it.
async fn tell(context: &RequestContext<RoleServer>, latest: Option<String>, elapsed: Duration) {
    let Some((token, message)) = context.meta.get_progress_token().zip(latest) else {
        return;
    };
    let told = ProgressNotificationParam::new(token, elapsed.as_secs_f64());
    // A client that is gone is noticed elsewhere.
    let _ = context
        .peer
        .notify_progress(told.with_message(message))
        .await;
}
