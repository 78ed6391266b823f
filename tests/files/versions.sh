# A repository that existed, and one that is new.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1
if [ ! -d .git ]; then
    git init -q -b main . && git add best.pt log.txt data && git commit -qm first
fi
echo changed >> log.txt
git status --short
git add log.txt && git commit -qm second
git log --oneline
git mv data moved
git commit -qam third
git status --short
git checkout -q HEAD~1
git stash list
git branch other
git gc -q
git fsck
git log --all --oneline | cat
