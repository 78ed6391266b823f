-- SPDX-License-Identifier: MIT OR Apache-2.0
--
-- Runs in sbatch, srun and salloc before a job is sent: the place for what takes time. It reads the job's command and
-- writes the forecast of its GPU memory into the job's options. See docs/guides/slurm.md.

-- Beside this file. A site that has hooks of its own calls `slurm_cli_pre_submit` of this file in its own.
local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local loaded, tonnage = pcall(dofile, folder .. "tonnage.lua")

local SECONDS = 5
-- Options that ask for GPUs or parts of them.
local ASKED = { "gres", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task" }

-- A number that the user gave, on the command line, in the script or in the environment.
local function given(options, name)
	-- An option that was not given reads as its default; only this list tells.
	local list = slurm.json_cli_options(options) or ""
	return tonumber(list:match('"' .. name:gsub("-", "%%-") .. '":"(%d+)"'))
end

local function tasks(options)
	local nodes, per_node = given(options, "nodes"), given(options, "ntasks-per-node")
	local asked = given(options, "ntasks") or nodes and per_node and nodes * per_node
	-- The command of srun is started once, if nothing else is said. A batch script starts what it likes.
	return asked or options["type"] == "srun" and 1 or nil
end

-- Writes the answer's shards into the options, and tells whether this version of Slurm can.
local function fill(options, answer)
	-- Only what is asked for each task comes from one GPU. What is asked for a node may be split over two of them.
	options["tres-per-task"] = tonnage.joined(options["tres-per-task"], "gres/shard:" .. answer.shards)
	if not options["tres-per-task"] then
		-- Versions before 23.02 know nothing else, and take it from one GPU.
		if answer.tasks == 1 then
			options["gres"] = tonnage.joined(options["gres"], "shard:" .. answer.shards)
		end
		return answer.tasks == 1
	end
	if answer.tasks > 1 then
		-- Otherwise two tasks that fit on one GPU get the same one.
		options["gres-flags"] = tonnage.joined(options["gres-flags"], "one-task-per-sharing")
		if not tasks(options) then
			-- One program starts all ranks, so they have to be on one node.
			options["nodes"] = "1"
		end
	end
	if not tasks(options) then
		options["ntasks"] = tostring(answer.tasks)
	end
	return true
end

local function ask(options)
	local job = { asked = {}, tasks = tasks(options), folder = options["chdir"] }
	for _, name in ipairs(ASKED) do
		job.asked[name] = options[name]
	end
	local words = options["argv"]
	if options["type"] ~= "sbatch" then
		job.words = words
		return tonnage.ask(job, tonnage.seconds("client_seconds", SECONDS))
	end
	local function ask_of(script)
		job.script = script
		return tonnage.ask(job, tonnage.seconds("client_seconds", SECONDS))
	end
	if words[1] then
		local script = table.remove(words, 1)
		job.words = words
		return ask_of(script)
	elseif options["wrap"] then
		return tonnage.with_script(options["wrap"], ask_of)
	end
	-- A script from standard input has been read already; job_submit sees it.
	return nil
end

function slurm_cli_pre_submit(options, pack_offset)
	if not loaded then
		slurm.log_error("tonnage: %s", tostring(tonnage))
		return slurm.SUCCESS
	end
	-- A step of a job that has its memory already.
	if options["type"] == "srun" and os.getenv("SLURM_JOB_ID") then
		return slurm.SUCCESS
	end
	local answer = ask(options)
	if not answer then
		return slurm.SUCCESS
	end
	if answer.action == "fill" and not fill(options, answer) then
		tonnage.not_written(answer)
	elseif answer.action == "whole" then
		options["gres"] = tonnage.joined(options["gres"], tonnage.whole(answer))
	end
	if answer.action == "refuse" then
		slurm.log_error("tonnage: %s", answer.message)
		return slurm.ERROR
	end
	if answer.message then
		slurm.log_info("tonnage: %s", answer.message)
	end
	options["comment"] = tonnage.marked(options["comment"], answer)
	return slurm.SUCCESS
end

function slurm_cli_setup_defaults(options, early)
	return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
	return slurm.SUCCESS
end
