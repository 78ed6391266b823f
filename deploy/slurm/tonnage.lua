-- SPDX-License-Identifier: MIT OR Apache-2.0
--
-- What cli_filter.lua and job_submit.lua have in common: they ask `tonnage fleet slurm` about a job and do what it says.
-- Nothing is decided here but how the answer is written into a job; docs/guides/slurm.md tells of settings and modes.
--
-- A job is never lost because of these files. If the command is missing, fails or takes too long, the job goes on as it
-- was asked for, with a line to the user. Only settings with `mode = "enforce"` refuse it then.

local tonnage = {}

-- The cluster's settings and the program. The environment is the user's in cli_filter and slurmctld's in job_submit.
local SETTINGS = os.getenv("TONNAGE_SLURM_SETTINGS") or "/etc/slurm/tonnage.toml"
local PROGRAM = os.getenv("TONNAGE_SLURM_PROGRAM") or "tonnage"

-- Linux starts no shell with a command of more than 128 KiB.
local MOST_COMMAND = 120000
-- An answer has a few lines.
local MOST_ANSWER = 65536
-- The longest that a hook may wait.
local MOST_SECONDS = 60
-- In the controller, the jobs of one user may cost half of the seconds of one answer within WINDOW seconds, and all jobs
-- three times as much. The first FREE milliseconds of an answer cost nothing, so that ordinary jobs have no limit.
local WINDOW, FREE, MILLISECONDS_OF_A_USER, USERS = 10, 100, 500, 3
-- A reason is one line.
local MOST_REASON = 500
-- What PyTorch's allocator reads, so that a forecast depends on it.
local ALLOCATOR = { "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF" }

-- A word that the shell reads back unchanged, whatever is in it.
local function quoted(word)
	return "'" .. word:gsub("'", "'\\''") .. "'"
end

-- One line without control characters, which could draw anything on a terminal.
local function one_line(text)
	return (text:gsub("%c+", " "):gsub("^ +", ""):gsub(" +$", ""))
end

-- What matches after the name of a setting. Two are needed when the command cannot be asked.
local function setting(name, pattern)
	local file = io.open(SETTINGS)
	if not file then
		return nil
	end
	local text = "\n" .. (file:read(MOST_ANSWER) or "")
	file:close()
	return text:match("\n[ \t]*" .. name .. "[ \t]*=[ \t]*" .. pattern)
end

-- Whether the settings say that no job may go on unchecked.
function tonnage.enforces()
	return setting("mode", "[\"'](%a+)[\"']") == "enforce"
end

-- How long to wait for an answer.
function tonnage.seconds(name, default)
	local seconds = tonumber(setting(name, "(%d+)"))
	return seconds and seconds >= 1 and seconds <= MOST_SECONDS and seconds or default
end

-- What a shell command printed, its exit code, and a problem or how many milliseconds it took.
local function run(command)
	if #command > MOST_COMMAND then
		return "", nil, "the words of the job are too long to be passed on"
	end
	-- Lua 5.1 does not tell how a command ended, and has no clock for parts of a second, so both are printed at the end.
	local now = "$(date +%s%3N)"
	local last = "; code=$?; printf '\\nexit=%s took=%s\\n' $code $((" .. now .. " - began))"
	local pipe, problem = io.popen("began=" .. now .. "; " .. command .. last, "r")
	if not pipe then
		return "", nil, problem
	end
	local printed = pipe:read(MOST_ANSWER) or ""
	pipe:close()
	local text, code, took = printed:match("^(.*)\nexit=(%d+) took=(%-?%d+)\n$")
	if not code then
		return "", nil, "it printed too much"
	end
	return text, tonumber(code), nil, tonumber(took)
end

-- What is to be done if there is no answer.
local function failed(reason, milliseconds)
	reason = "it could not be asked: " .. one_line(reason):sub(1, MOST_REASON)
	local action, what = "advise", "; the job continues as requested"
	if tonnage.enforces() then
		action, what = "refuse", "; no job is accepted here without its answer"
	end
	return { action = action, message = reason .. what, milliseconds = milliseconds }
end

-- Asks about a job, which has these fields:
--
--   script       the path of a batch script
--   words        the words of a command, or the arguments of the script
--   folder       where it starts
--   tasks        how many tasks were asked for, if somebody did
--   asked        what was asked for of gres and TRES: { option = value }
--   environment  a function that tells what a variable is in the job; without it, the job has this environment
--
-- The answer has `action` (none, advise, fill, whole or refuse) and, as far as they are known, `message`, `forecast`,
-- `tasks`, `shards` (of each task) and `milliseconds` (how long it took). It takes at most `seconds`, and one more if the
-- command must be killed.
function tonnage.ask(job, seconds)
	local command = {}
	local function add(text)
		command[#command + 1] = text
	end
	-- The words of a job name its files from its folder.
	if job.folder then
		add("{ CDPATH= cd -- " .. quoted(job.folder) .. " 2>/dev/null || cd /; };")
	end
	for _, name in ipairs(ALLOCATOR) do
		local value = job.environment and job.environment(name)
		if value then
			add(name .. "=" .. quoted(value))
		end
	end
	add(string.format("timeout -k 1 %d", seconds))
	add(quoted(PROGRAM) .. " fleet slurm --settings=" .. quoted(SETTINGS))
	if job.script then
		add("--script=" .. quoted(job.script))
	end
	if job.tasks then
		add(string.format("--tasks=%d", job.tasks))
	end
	local names = {}
	for name in pairs(job.asked) do
		names[#names + 1] = name
	end
	table.sort(names)
	for _, name in ipairs(names) do
		add("--asked=" .. quoted(name .. "=" .. job.asked[name]))
	end
	add("--")
	for _, word in ipairs(job.words or {}) do
		add(quoted(word))
	end
	add("</dev/null 2>&1")

	local began = os.time()
	local text, code, problem, took = run(table.concat(command, " "))
	-- 124 is of `timeout`; 137 is what had to be killed for it, or was killed by others.
	if code == 124 or code == 137 and os.time() - began >= seconds then
		return failed(string.format("no answer within %d s", seconds), took)
	elseif code ~= 0 and code ~= 1 then
		return failed(one_line(text) ~= "" and text or problem or string.format("it ended with code %d", code), took)
	end
	local answer = {}
	for name, value in text:gmatch("(%l+)=([^\n]*)") do
		answer[name] = one_line(value)
	end
	answer.tasks, answer.shards = tonumber(answer.tasks), tonumber(answer.shards)
	answer.milliseconds = took
	if code == 1 then
		answer.action = "refuse"
	end
	if answer.action == "fill" and not (answer.tasks and answer.shards) or not answer.action then
		return failed("the answer is not understood: " .. text, took)
	end
	return answer
end

-- What jobs cost in this window, by user; `all` is their sum.
local window, costs = 0, { all = 0 }

-- Asks about a job of a user unless the jobs of this user, or all jobs, have cost too much lately: slurmctld waits for
-- each answer with its locks held.
function tonnage.ask_within_cost(user, job, seconds)
	local now = os.time()
	if now - window >= WINDOW or now < window then
		window, costs = now, { all = 0 }
	end
	local most = seconds * MILLISECONDS_OF_A_USER
	if (costs[user] or 0) >= most or costs.all >= USERS * most then
		return failed(string.format("lately submitted jobs took too long to read; submit again in %d s", WINDOW))
	end
	local answer = tonnage.ask(job, seconds)
	local cost = math.max(0, (answer.milliseconds or 0) - FREE)
	costs[user] = (costs[user] or 0) + cost
	costs.all = costs.all + cost
	return answer
end

-- What asks for one whole GPU for each task: of all tasks together, where a version cannot ask for each task.
function tonnage.whole(answer)
	return string.format("gpu:%d", answer.tasks or 1)
end

-- Makes an answer that cannot be written into the job one that is only said.
function tonnage.not_written(answer)
	answer.action = "advise"
	answer.message = answer.message
		.. "; not written into the job, as this version of Slurm has no shards per task: ask for one task per node"
end

-- A list of an option with one more. What was not given reads as nothing or, of some options, as "unset".
function tonnage.joined(list, one)
	return list and list ~= "" and list ~= "unset" and list .. "," .. one or one
end

-- Calls `use` with the path of a file that holds `text`, as long as the call takes.
function tonnage.with_script(text, use)
	local path = os.tmpname()
	local file, problem = io.open(path, "w")
	if not file then
		return failed(problem)
	end
	file:write(text)
	file:close()
	local answer = use(path)
	os.remove(path)
	return answer
end

-- The client leaves a mark at the end of the job's comment, and the controller moves it to the administrator's comment.
-- Anyone can write one: it says that the user has been told, and nothing is allowed because of it.
function tonnage.marked(comment, answer)
	local words = { "tonnage", answer.action }
	if answer.action == "fill" and answer.shards then
		words[#words + 1] = string.format("%dx%d", answer.tasks, answer.shards)
	end
	words[#words + 1] = answer.forecast
	return (comment or "") .. "[" .. table.concat(words, " ") .. "]"
end

-- The comment without the mark, and the mark.
function tonnage.unmarked(comment)
	local rest, mark = (comment or ""):match("^(.*)%[(tonnage %l+[%w ]*)%]$")
	return rest, mark
end

return tonnage
