// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands of a batch script that may use a GPU, as far as its text shows.
//!
//! A command that may start PyTorch in a way that is not understood is reported as unknown. Files that the script
//! sources and programs without a name of [`PROGRAMS`](super::programs::PROGRAMS) among their words are taken for ones
//! that use no GPU.

use std::path::PathBuf;
use std::rc::Rc;

use super::launchers::{Launched, strip_launcher};
use super::lexer::{Lexer, Token, Word};
use super::programs::{StartedBy, has_extension, name_of, names_program, starts_torch};

/// Commands of a script that are looked up, and lines that are reported as unknown: each costs time in the controller.
const MAX_COMMANDS: usize = 64;
/// The kernel starts no program with more bytes of words and pointers to them.
const MAX_COMMAND: usize = 2 << 20;
/// No path is longer.
const MAX_FOLDER: usize = 4096;
/// Brackets, loops and groups that are open at a time.
const MAX_OPEN: usize = 1000;
/// `bash -c` within `bash -c`.
const MAX_DEPTH: u32 = 4;

/// The commands of a job that may use a GPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Commands {
    pub(super) found: Vec<Started>,
    /// Lines that may start PyTorch and of which the words are not known; without a line outside of scripts.
    pub(super) unknown: Vec<Option<usize>>,
}

impl Commands {
    fn add_unknown(&mut self, line: Option<usize>) {
        if self.unknown.last() != Some(&line) && self.unknown.len() < MAX_COMMANDS {
            self.unknown.push(line);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Started {
    /// Missing outside of scripts.
    pub(super) line: Option<usize>,
    pub(super) words: Vec<String>,
    /// From the folder in which the job starts.
    pub(super) folder: PathBuf,
    pub(super) by: StartedBy,
}

const SHELLS: [&str; 5] = ["bash", "sh", "dash", "ksh", "zsh"];
/// Programs that run none of their words, whatever these are.
const HARMLESS: [&str; 71] = [
    "[",
    "[[",
    ".",
    ":",
    "awk",
    "cat",
    "chmod",
    "conda",
    "cp",
    "curl",
    "cut",
    "date",
    "declare",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "exit",
    "export",
    "false",
    "for",
    "git",
    "grep",
    "head",
    "hostname",
    "kill",
    "let",
    "ln",
    "local",
    "ls",
    "mamba",
    "md5sum",
    "micromamba",
    "mkdir",
    "ml",
    "mktemp",
    "module",
    "mv",
    "nvidia-smi",
    "pgrep",
    "pip",
    "pip3",
    "pkill",
    "printf",
    "ps",
    "pwd",
    "read",
    "readonly",
    "return",
    "rm",
    "rsync",
    "sacct",
    "sbatch",
    "scancel",
    "scontrol",
    "sed",
    "select",
    "sha256sum",
    "sleep",
    "sort",
    "source",
    "squeue",
    "tail",
    "tar",
    "tee",
    "test",
    "touch",
    "unset",
    "which",
];
/// Words of the shell's grammar before a command.
const KEYWORDS: [&str; 9] = [
    "if", "then", "else", "elif", "do", "while", "until", "!", "{",
];

/// The commands of a batch script with these arguments.
pub(super) fn commands_of(script: &str, arguments: &[String]) -> Commands {
    let mut commands = Commands::default();
    let first = script.lines().next().unwrap_or_default();
    let interpreter = first.strip_prefix("#!").map(|line| {
        let mut words = line.split_whitespace();
        let program = words.next().map_or("", name_of);
        match program {
            "env" => words
                .find(|word| !word.starts_with('-'))
                .map_or("", name_of),
            program => program,
        }
    });
    if interpreter.is_some_and(|name| !name.ends_with("sh")) {
        commands.add_unknown(Some(1));
        return commands;
    }
    let mut shell = Shell::default();
    let mut reader = Reader::new(script, Some(arguments), &mut shell, &mut commands);
    reader.read();
    commands
}

/// The command of srun, or another, by its words.
pub(super) fn command_of(words: &[String], by: StartedBy) -> Commands {
    let mut commands = Commands::default();
    let mut shell = Shell::default();
    let mut reader = Reader::new("", None, &mut shell, &mut commands);
    reader.origin = Origin {
        is_script: false,
        by,
        ..Origin::default()
    };
    reader.words = words.iter().map(|word| Word::literal(word)).collect();
    reader.take_command("");
    commands
}

/// The state of a shell that later commands depend on.
#[derive(Debug)]
struct Shell {
    /// The folder that the script has changed to; missing where only variables give it.
    folder: Option<Rc<PathBuf>>,
    /// Whether a program that may use a GPU runs beside the next commands.
    is_busy: bool,
}

impl Default for Shell {
    fn default() -> Self {
        Self {
            folder: Some(Rc::default()),
            is_busy: false,
        }
    }
}

/// Where the text of a [`Reader`] comes from.
#[derive(Clone, Copy, Debug)]
struct Origin {
    is_script: bool,
    /// The line of the command that has the text as a word.
    line: Option<usize>,
    by: StartedBy,
    depth: u32,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            is_script: true,
            line: None,
            by: StartedBy::Script,
            depth: 0,
        }
    }
}

/// The constructs that are open.
#[derive(Debug)]
enum Open {
    /// `(`, with the folder to return to.
    Subshell(Option<Rc<PathBuf>>),
    /// The brackets behind the name of a function.
    Parameters,
    Case,
    Loop,
    /// `{`, and whether it is the body of a function.
    Group(bool),
}

/// Reads the commands of a text.
struct Reader<'a> {
    lexer: Lexer<'a>,
    shell: &'a mut Shell,
    commands: &'a mut Commands,
    origin: Origin,
    open: Vec<Open>,
    loops: usize,
    functions: usize,
    /// Whether the body of a function comes next.
    awaits_body: bool,
    /// Whether a program of this pipeline may use a GPU.
    is_piped: bool,
    /// The same of the commands that one `&` would start.
    is_listed: bool,
    /// The words of the command that is being read, its line, and the bytes that it takes.
    words: Vec<Word>,
    line: usize,
    size: usize,
}

impl<'a> Reader<'a> {
    fn new(
        text: &'a str,
        arguments: Option<&'a [String]>,
        shell: &'a mut Shell,
        commands: &'a mut Commands,
    ) -> Self {
        Self {
            lexer: Lexer::new(text, arguments),
            shell,
            commands,
            origin: Origin::default(),
            open: Vec::new(),
            loops: 0,
            functions: 0,
            awaits_body: false,
            is_piped: false,
            is_listed: false,
            words: Vec::new(),
            line: 1,
            size: 0,
        }
    }

    fn read(&mut self) {
        let (mut is_file, mut in_test) = (false, false);
        loop {
            if self.words.is_empty() {
                self.size = 0;
            }
            if self.open.len() > MAX_OPEN {
                self.commands.add_unknown(self.current_line());
                return;
            }
            let Some(token) = self.lexer.next() else {
                break;
            };
            match token {
                Token::Unclosed => {
                    self.note_line();
                    self.commands.add_unknown(self.current_line());
                    return;
                }
                Token::Redirection => is_file = true,
                Token::Word(_) if is_file => is_file = false,
                Token::Word(word) => {
                    self.note_line();
                    // `[[ a && b ]]` is one command.
                    in_test |= word.is("[[") && self.words.iter().all(is_keyword);
                    in_test &= !word.is("]]");
                    self.size += word.text.len() + size_of::<usize>();
                    if self.size <= MAX_COMMAND {
                        self.words.push(word);
                    }
                }
                Token::Operator(_) if in_test => {}
                Token::Operator("(") => self.open_bracket(),
                Token::Operator(")") => self.close_bracket(),
                Token::Operator(operator) => {
                    is_file = false;
                    self.take_command(operator);
                }
            }
        }
        if in_test {
            self.commands.add_unknown(self.current_line());
        }
        self.take_command("");
    }

    /// Keeps the line in which a command begins.
    fn note_line(&mut self) {
        if self.words.is_empty() {
            self.line = self.lexer.line;
        }
    }

    fn current_line(&self) -> Option<usize> {
        let own = self.origin.is_script.then_some(self.line);
        self.origin.line.or(own)
    }

    fn open_bracket(&mut self) {
        // A function whose body has other brackets: the words after it are not separated.
        if std::mem::take(&mut self.awaits_body) {
            self.functions += 1;
        }
        // Behind a word it is the definition of a function.
        if self.words.iter().all(is_keyword) {
            self.take_command("");
            self.open.push(Open::Subshell(self.shell.folder.clone()));
        } else {
            self.words.clear();
            self.open.push(Open::Parameters);
        }
    }

    fn close_bracket(&mut self) {
        let is_case = self.words.first().is_some_and(|word| word.is("case"));
        match self.open.last() {
            // The words are a pattern.
            Some(Open::Case) if !is_case => self.words.clear(),
            Some(Open::Parameters) => {
                self.open.pop();
                self.words.clear();
                self.awaits_body = true;
            }
            Some(Open::Subshell(folder)) if !is_case => {
                let folder = folder.clone();
                self.take_command("");
                // The command may have opened a construct itself.
                if matches!(self.open.last(), Some(Open::Subshell(_))) {
                    self.open.pop();
                    self.shell.folder = folder;
                }
            }
            _ => self.take_command(""),
        }
    }

    /// Takes the words that were read as a command, which this operator ends.
    fn take_command(&mut self, operator: &str) {
        let words = std::mem::take(&mut self.words);
        let ends_group = words.first().is_none_or(|word| {
            !word.is_quoted && matches!(word.text.as_str(), "}" | "done" | "fi" | "esac")
        });
        if self.judge(&words, operator) {
            self.is_piped = true;
            self.is_listed = true;
        }
        if operator == "&" {
            let is_any = !self.commands.found.is_empty() || !self.commands.unknown.is_empty();
            self.shell.is_busy |= self.is_listed || (ends_group && is_any);
            if ends_group && is_any && self.loops > 0 {
                self.commands.add_unknown(self.current_line());
            }
        }
        self.is_piped &= matches!(operator, "|" | "|&");
        self.is_listed &= matches!(operator, "|" | "|&" | "&&" | "||" | "");
    }

    /// Judges a command; whether it may use a GPU.
    fn judge(&mut self, words: &[Word], operator: &str) -> bool {
        let line = self.current_line();
        let words = self.strip_grammar(words);
        let mut in_word = words.iter().filter(|word| word.has_commands);
        if in_word.any(|word| names_program(&word.text)) {
            self.commands.add_unknown(line);
            return true;
        }
        let (words, by) = match strip_launcher(words, self.origin.by) {
            Launched::Words(words, by) => (words, by),
            Launched::Nothing => return false,
            Launched::Unknown => {
                self.commands.add_unknown(line);
                return true;
            }
        };
        let Some(program) = words.first() else {
            return false;
        };
        let name = name_of(&program.text);
        let is_unknown = if name.contains(['$', '`', '}', ')']) && !program.is_known {
            // Programs of variables.
            true
        } else if starts_torch(name) {
            return self.start(name, &words, by, operator);
        } else if SHELLS.contains(&name) {
            return self.read_inner(&words, by);
        } else if name == "eval" {
            let text: Vec<&str> = words[1..].iter().map(|word| word.text.as_str()).collect();
            let is_known = words.iter().all(|word| word.is_known);
            return self.read_text(is_known.then(|| text.join(" ")), None, by);
        } else {
            match name {
                "cd" | "pushd" | "popd" => self.change_folder(&words),
                "wait" => self.shell.is_busy = false,
                "shift" => self.lexer.arguments = None,
                "set" if sets_arguments(&words) => self.lexer.arguments = None,
                _ => {}
            }
            has_extension(name, "sh")
                || (!HARMLESS.contains(&name)
                    && (self.size > MAX_COMMAND
                        || words.iter().any(|word| names_program(&word.text))))
        };
        if is_unknown {
            self.commands.add_unknown(line);
        }
        is_unknown
    }

    /// The words of a command without keywords and assignments before it; what the keywords open and close is kept.
    fn strip_grammar<'w>(&mut self, words: &'w [Word]) -> &'w [Word] {
        let mut rest = words;
        while let [first, after @ ..] = rest {
            if first.is_quoted {
                break;
            }
            match first.text.as_str() {
                "{" => {
                    let is_body = std::mem::take(&mut self.awaits_body);
                    self.functions += usize::from(is_body);
                    self.open.push(Open::Group(is_body));
                }
                "do" => {
                    self.loops += 1;
                    self.open.push(Open::Loop);
                }
                "case" => {
                    self.open.push(Open::Case);
                    return &[];
                }
                "function" => {
                    self.awaits_body = true;
                    rest = after.get(1..).unwrap_or_default();
                    continue;
                }
                "}" => self.close(|one| matches!(one, Open::Group(_))),
                "done" => self.close(|one| matches!(one, Open::Loop)),
                "esac" => self.close(|one| matches!(one, Open::Case)),
                "fi" => {}
                _ if is_keyword(first) => {}
                _ => break,
            }
            rest = after;
        }
        self.awaits_body &= rest.is_empty();
        rest
    }

    fn close(&mut self, is_it: impl Fn(&Open) -> bool) {
        if let Some(one) = self.open.pop_if(|one| is_it(one)) {
            self.loops -= usize::from(matches!(one, Open::Loop));
            self.functions -= usize::from(matches!(one, Open::Group(true)));
        }
    }

    fn change_folder(&mut self, words: &[Word]) {
        let folder = match (words, &self.shell.folder) {
            ([cd, to], Some(folder))
                if cd.text != "popd" && to.is_known && !to.text.starts_with(['-', '+']) =>
            {
                Some(folder.join(&to.text))
            }
            _ => None,
        };
        // A function is called later.
        let folder = folder.filter(|_| self.functions == 0);
        let is_path = |folder: &PathBuf| folder.as_os_str().len() <= MAX_FOLDER;
        self.shell.folder = folder.filter(is_path).map(Rc::new);
    }

    /// Adds a command that starts PyTorch.
    fn start(&mut self, name: &str, words: &[Word], by: StartedBy, operator: &str) -> bool {
        let line = self.current_line();
        let is_known = self.size <= MAX_COMMAND
            // The folder of a program does not count.
            && words[1..].iter().all(|word| word.is_known)
            // A function is called later, with other arguments.
            && self.functions == 0
            // The memory of programs that run at a time adds up.
            && !self.shell.is_busy
            && !self.is_piped
            && !(operator == "&" && self.loops > 0)
            && self.commands.found.len() < MAX_COMMANDS;
        match &self.shell.folder {
            Some(folder) if is_known => {
                let program = if words[0].is_known {
                    &words[0].text
                } else {
                    name
                };
                let others = words[1..].iter().map(|word| word.text.clone());
                self.commands.found.push(Started {
                    line,
                    words: std::iter::once(program.to_owned()).chain(others).collect(),
                    folder: folder.to_path_buf(),
                    by,
                });
            }
            _ => self.commands.add_unknown(line),
        }
        true
    }

    /// Reads the commands of `bash -c TEXT`; a script in another file is not known.
    fn read_inner(&mut self, words: &[Word], by: StartedBy) -> bool {
        let (mut at, mut has_text) = (1, false);
        while let Some(option) = words
            .get(at)
            .filter(|word| word.text.starts_with(['-', '+']))
        {
            let is_short = !option.text.starts_with("--");
            has_text |= is_short && option.text.contains('c');
            at += 1 + usize::from(is_short && option.text.ends_with(['o', 'O']));
        }
        let text = words.get(at).filter(|word| has_text && word.is_known);
        let arguments: Vec<String> = words
            .iter()
            .skip(at + 2)
            .map(|word| word.text.clone())
            .collect();
        let are_known = words.iter().skip(at + 2).all(|word| word.is_known);
        let text = text.map(|word| word.text.clone());
        let folder = self.shell.folder.clone();
        let may_use_gpu = self.read_text(text, are_known.then_some(&*arguments), by);
        self.shell.folder = folder;
        may_use_gpu
    }

    fn read_text(
        &mut self,
        text: Option<String>,
        arguments: Option<&[String]>,
        by: StartedBy,
    ) -> bool {
        let line = self.current_line();
        let Some(text) = text.filter(|_| self.origin.depth < MAX_DEPTH && self.functions == 0)
        else {
            self.commands.add_unknown(line);
            return true;
        };
        let before = (self.commands.found.len(), self.commands.unknown.len());
        let mut reader = Reader::new(&text, arguments, self.shell, self.commands);
        reader.origin = Origin {
            is_script: false,
            line,
            by,
            depth: self.origin.depth + 1,
        };
        reader.is_piped = self.is_piped;
        reader.loops = self.loops;
        reader.read();
        before != (self.commands.found.len(), self.commands.unknown.len())
    }
}

/// Whether these words of `set` change the arguments of the script.
fn sets_arguments(words: &[Word]) -> bool {
    let mut words = words.iter().skip(1).map(|word| word.text.as_str());
    while let Some(word) = words.next() {
        if matches!(word, "-" | "--") || !word.starts_with(['-', '+']) {
            return true;
        }
        // `-o pipefail`.
        if word.ends_with('o') {
            words.next();
        }
    }
    false
}

fn is_keyword(word: &Word) -> bool {
    !word.is_quoted && (KEYWORDS.contains(&word.text.as_str()) || word.text == "time")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_started(line: usize, words: &str, folder: &str, by: StartedBy) -> Started {
        Started {
            line: Some(line),
            words: words.split('|').map(str::to_owned).collect(),
            folder: folder.into(),
            by,
        }
    }

    #[test]
    fn the_commands_of_a_batch_script_are_found_behind_what_starts_them() {
        let script = "#!/bin/bash\n#SBATCH -n 2\nmodule load cuda\nexport A=1\n\
            A=1 srun -n 2 --label \\\n  python3 train.py --lr 1e-3 > log.txt\n\
            cd x && torchrun --nproc-per-node 2 'my train.py'\necho python\npython eval.py --data $DATA\n\
            srun --ntasks=4 python a.py\nsrun -n8 python b.py\nsrun python c.py\n\
            cd $HOME\npython last.py\n";
        let commands = commands_of(script, &[]);
        let expected = [
            build_started(
                5,
                "python3|train.py|--lr|1e-3",
                "",
                StartedBy::Srun(Some(2)),
            ),
            build_started(
                7,
                "torchrun|--nproc-per-node|2|my train.py",
                "x",
                StartedBy::Script,
            ),
            build_started(10, "python|a.py", "x", StartedBy::Srun(Some(4))),
            build_started(11, "python|b.py", "x", StartedBy::Srun(Some(8))),
            build_started(12, "python|c.py", "x", StartedBy::Srun(None)),
        ];
        assert_eq!(commands.found, expected);
        assert_eq!(commands.unknown, [Some(9), Some(14)]);
    }

    #[test]
    fn commands_within_loops_and_conditions_are_commands() {
        let script = "for n in 1 2; do python train.py $n; done\nif python check.py; then\n  (python a.py)\nfi\n\
            case $1 in\na|b) python b.py ;;\n*) python c.py\nesac\nwhile [[ -n $A && ( $B > 1 ) ]]; do\n{ python d.py; }\ndone\n\
            python e.py 2>&1 | tee log\n(cd x; python f.py)\npython g.py >>$LOG --last\n";
        let (words, unknown) = read(script);
        assert_eq!(
            words,
            "python check.py|python a.py|python b.py|python c.py|python d.py|python e.py|python f.py|python g.py --last"
        );
        assert_eq!(unknown, [1]);
        let folders: Vec<_> = commands_of(script, &[])
            .found
            .into_iter()
            .map(|one| one.folder)
            .collect();
        assert_eq!(folders[6], PathBuf::from("x"));
        assert_eq!(folders[7], PathBuf::new());
    }

    /// The commands that are found, and the lines that are unknown.
    fn read(script: &str) -> (String, Vec<usize>) {
        let commands = commands_of(script, &[]);
        let words = commands.found.iter().map(|one| one.words.join(" "));
        let unknown = commands.unknown.iter().map(|line| line.expect("a line"));
        (words.collect::<Vec<_>>().join("|"), unknown.collect())
    }

    #[test]
    fn operators_within_quotes_are_part_of_their_word() {
        let (words, unknown) = read(
            "python train.py --tags \"a;b\" --note 'x && y' c\\;d # python no.py\npython 'b\nc.py'; python d.py",
        );
        assert_eq!(
            words,
            "python train.py --tags a;b --note x && y c;d|python b\nc.py|python d.py"
        );
        assert!(unknown.is_empty());
    }

    #[test]
    fn text_that_is_not_run_is_not_a_command() {
        let script = "cat > a.txt <<END\npython no.py\nEND\necho python no.py\nmodule load python/3.11\n\
            pip install vllm\nCMD=(python no.py)\nexport A='python no.py'\ncommand -v python\ncp train.py $TMPDIR\n\
            source venv/bin/activate\nset -euo pipefail\nhostname\n./simulate --steps 3\n#python no.py\n";
        assert_eq!(read(script), (String::new(), Vec::new()));
        assert_eq!(commands_of("", &[]), Commands::default());
    }

    #[test]
    fn lines_that_may_start_pytorch_are_unknown_and_not_nothing() {
        for script in [
            "python train.py --tags \"a;b",
            "python train.py 'a",
            "echo \"$(python train.py\"",
            "X=$(python train.py)",
            "echo `python train.py`",
            "tee <(python train.py)",
            "$PYTHON train.py",
            "\"${CMD[@]}\"",
            "bash run.sh",
            "./run.sh",
            "bash <<END\npython train.py\nEND",
            "bash -c \"$COMMAND\"",
            "eval $COMMAND",
            "xargs -n 1 python train.py < list",
            "mpirun -n 2 python train.py",
            "ssh node 'cd x; python3.11 train.py'",
            "trap 'python train.py' EXIT",
            "run() { python train.py; }",
            "function run { python train.py; }",
            "run() ( python train.py )",
            "docker run --gpus all image",
            "apptainer run image.sif",
            "apptainer exec --pwd /x image.sif python train.py",
            "apptainer exec image.sif train",
            "uv run train",
            "conda run --cwd x python train.py",
            "timeout --new 5 python train.py",
            "for i in 1 2; do python train.py & done",
            "for i in 1 2; do (python train.py; ) & done",
            "python {a,b}.py",
            "cd; python train.py",
            "cd ~; python train.py",
            "popd; python train.py",
            "[[ a && python train.py",
            "#!/usr/bin/env python3\nimport torch",
        ] {
            let commands = commands_of(script, &[]);
            assert_eq!(
                commands.unknown,
                [Some(1)],
                "{script}: {:?}",
                commands.found
            );
        }
    }

    #[test]
    fn programs_that_run_at_a_time_are_not_known_one_by_one() {
        for (script, expected) in [
            (
                "python a.py &\npython b.py\nwait\npython c.py",
                "python a.py|python c.py",
            ),
            (
                "python a.py | python b.py\npython c.py",
                "python a.py|python c.py",
            ),
            ("(python a.py; true) &\npython b.py", "python a.py"),
            ("python a.py && true &\npython b.py", "python a.py"),
        ] {
            let (words, unknown) = read(script);
            assert_eq!(words, expected, "{script}");
            assert_eq!(unknown.len(), 1, "{script}");
        }
    }

    #[test]
    fn commands_are_found_behind_launchers() {
        for (script, expected) in [
            (
                "apptainer exec --nv -B /data:/data --env A=1 image.sif python train.py",
                "python train.py",
            ),
            (
                "singularity exec --nv --bind=/data image.sif bash -c 'cd x && python train.py'",
                "python train.py",
            ),
            (
                "uv run --frozen --extra gpu python train.py -x",
                "python train.py -x",
            ),
            ("uv run train.py --lr 1", "python train.py --lr 1"),
            ("uv run -m train", "python -m train"),
            ("poetry run torchrun train.py", "torchrun train.py"),
            (
                "conda run -n env --no-capture-output python train.py",
                "python train.py",
            ),
            (
                "env -u A B=1 nice -n 5 timeout -k 5 1h python train.py",
                "python train.py",
            ),
            (
                "stdbuf -oL numactl --cpunodebind=0 taskset -c 0-3 python train.py",
                "python train.py",
            ),
            ("$HOME/venv/bin/python train.py", "python train.py"),
            ("exec ./train.py --lr 1", "./train.py --lr 1"),
            (
                "bash -euo pipefail -c 'python $1 $2' name a.py b",
                "python a.py b",
            ),
            ("eval 'python train.py'", "python train.py"),
        ] {
            assert_eq!(read(script), (expected.to_owned(), Vec::new()), "{script}");
        }
        let srun = "srun --container-image=x -n 2 bash -c 'python train.py'";
        assert_eq!(commands_of(srun, &[]).found[0].by, StartedBy::Srun(Some(2)));
    }

    #[test]
    fn hostile_scripts_take_bounded_time_and_memory() {
        let many = |text: &str| text.repeat((1 << 18) / text.len());
        let path = format!("cd {}\n", "x".repeat(4000));
        let deep = (0..9).fold("python a.py".to_owned(), |text, _| {
            format!("bash -c '{}'", text.replace('\'', "'\\''"))
        });
        let arguments = vec!["x".repeat(1 << 20); 4];
        let began = std::time::Instant::now();
        for script in [
            "'".repeat(10 << 20),
            "\"".repeat(10 << 20),
            many("''"),
            many("'' "),
            many("\"$("),
            many("$("),
            many("${"),
            many("`"),
            many("( "),
            many("(("),
            many("{ "),
            many("\\"),
            many("<<a "),
            many("<<a\n"),
            many("case x in a) "),
            many("! "),
            many("[[ "),
            many("\r"),
            many("cd aaaa;"),
            path + &many("( "),
            many("python a.py\n"),
            many("python a.py '\n"),
            many("$(python a.py)\n"),
            many("\"$@\" "),
            format!("python {}", many("\"$@\" ")),
            format!("python {}", many("\"$1$2\"")),
            format!("python a.py {}", many("a.bin ")),
            deep,
        ] {
            for arguments in [&arguments[..], &[]] {
                let commands = commands_of(&script, arguments);
                assert!(commands.found.len() <= MAX_COMMANDS);
                assert!(commands.unknown.len() <= MAX_COMMANDS);
                let of = |one: &Started| one.words.iter().map(String::len).sum::<usize>();
                assert!(commands.found.iter().map(of).sum::<usize>() <= MAX_COMMAND);
            }
        }
        // Seconds in a debug build; what is quadratic takes hours.
        assert!(began.elapsed() < std::time::Duration::from_mins(10));
    }

    #[test]
    fn arguments_of_the_script_are_known() {
        let arguments = ["7b".to_owned(), "a b".to_owned()];
        let script = "python train.py --size $1 --name \"${2}\"\npython all.py \"$@\"\npython x.py --size=$1\npython y.py $3\npython z.py $2\nset -e\npython u.py $1\nshift\npython v.py $1\n";
        let commands = commands_of(script, &arguments);
        let words: Vec<_> = commands.found.iter().map(|one| one.words.clone()).collect();
        assert_eq!(
            words,
            [
                vec!["python", "train.py", "--size", "7b", "--name", "a b"],
                vec!["python", "all.py", "7b", "a b"],
                vec!["python", "x.py", "--size=7b"],
                vec!["python", "u.py", "7b"],
            ]
        );
        assert_eq!(commands.unknown, [Some(4), Some(5), Some(9)]);
    }

    #[test]
    fn a_command_without_a_script_is_what_srun_starts() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let by = StartedBy::Srun(Some(2));
        let commands = command_of(&words("env A=1 python train.py"), by);
        assert_eq!(commands.found[0].words, words("python train.py"));
        assert_eq!(commands.found[0].by, by);
        // The program that salloc starts.
        let commands = command_of(&words("srun -n 3 python train.py"), StartedBy::Script);
        assert_eq!(commands.found[0].by, StartedBy::Srun(Some(3)));
        assert_eq!(command_of(&words("hostname"), by), Commands::default());
        assert_eq!(command_of(&words("./run.sh"), by).unknown, [None]);
        assert_eq!(command_of(&[], by), Commands::default());
    }
}
