-- SPDX-License-Identifier: MIT OR Apache-2.0
--
-- Runs in slurmctld under its locks, so it must be quick. Jobs of sbatch, srun and salloc have been seen by
-- cli_filter.lua; here are those that came another way (REST, other clients, scripts from standard input) and, with
-- `mode = "enforce"`, all of them. See docs/guides/slurm.md.

-- Beside this file. A site that has hooks of its own calls `slurm_job_submit` of this file in its own.
local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local loaded, tonnage = pcall(dofile, folder .. "tonnage.lua")

local SECONDS = 2
-- ESLURM_INVALID_GRES, which the client shows as "Invalid generic resource (gres) specification".
local INVALID_GRES = 2072

-- How this version of Slurm separates words: `gres:shard` before 23.11, `gres/shard` since.
local function separator(job)
	local before = job.gres
	job.gres = "shard:1"
	local found = job.gres:match("^gres(.)")
	job.gres = before or ""
	return found
end

-- Writes the answer's shards into the job, and tells whether this version of Slurm can.
local function fill(job, answer)
	-- Only what is asked for each task comes from one GPU. What is asked for a node may be split over two of them.
	-- Versions before 23.11 refuse shards per task, and take those of a node from one GPU.
	if separator(job) ~= "/" then
		if answer.tasks == 1 then
			job.gres = tonnage.joined(job.gres, "shard:" .. answer.shards)
		end
		return answer.tasks == 1
	end
	job.tres_per_task = tonnage.joined(job.tres_per_task, "gres/shard:" .. answer.shards)
	local flag = slurm.GRES_ONE_TASK_PER_SHARING
	if answer.tasks > 1 and flag and math.floor(job.bitflags / flag) % 2 == 0 then
		-- Otherwise two tasks that fit on one GPU get the same one.
		job.bitflags = job.bitflags + flag
	end
	if job.num_tasks == slurm.NO_VAL then
		-- One program starts all ranks, so they have to be on one node.
		job.min_nodes, job.max_nodes = 1, 1
		job.num_tasks = answer.tasks
		job.min_cpus = answer.tasks
	end
	return true
end

local function ask(job, user)
	local question = {
		folder = job.work_dir,
		asked = {
			["tres-per-job"] = job.tres_per_job,
			["tres-per-node"] = job.tres_per_node,
			["tres-per-socket"] = job.tres_per_socket,
			["tres-per-task"] = job.tres_per_task,
		},
		tasks = job.num_tasks ~= slurm.NO_VAL and job.num_tasks or nil,
		words = {},
	}
	-- The words are counted from 0: the script or the program. Without a script, versions before 23.02 pass only the
	-- program, of which nothing can be known.
	local first = job.script and 1 or 0
	if job.argc > 1 then
		for at = first, job.argc - 1 do
			question.words[#question.words + 1] = job.argv[at]
		end
	end
	if not job.script then
		return tonnage.ask_within_cost(user, question, tonnage.seconds("controller_seconds", SECONDS))
	end
	question.environment = function(name)
		return job.environment[name]
	end
	return tonnage.with_script(job.script, function(path)
		question.script = path
		return tonnage.ask_within_cost(user, question, tonnage.seconds("controller_seconds", SECONDS))
	end)
end

function slurm_job_submit(job, partitions, uid)
	if not loaded then
		slurm.log_error("tonnage: %s", tostring(tonnage))
		return slurm.SUCCESS
	end
	local comment, mark = tonnage.unmarked(job.comment)
	if mark then
		job.comment = comment
		job.admin_comment = mark ~= "tonnage none" and mark or ""
		if not tonnage.enforces() then
			return slurm.SUCCESS
		end
	end
	local answer = ask(job, uid)
	if answer.action == "fill" and not fill(job, answer) then
		tonnage.not_written(answer)
	elseif answer.action == "whole" then
		job.gres = tonnage.joined(job.gres, tonnage.whole(answer))
	end
	if answer.action == "refuse" then
		slurm.log_user("tonnage: %s", answer.message)
		return INVALID_GRES
	end
	if not mark then
		if answer.message then
			slurm.log_user("tonnage: %s", answer.message)
		end
		if answer.action ~= "none" then
			job.admin_comment = select(2, tonnage.unmarked(tonnage.marked(nil, answer)))
		end
	end
	return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
	return slurm.SUCCESS
end

return slurm.SUCCESS
