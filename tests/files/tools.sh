# Real tools on the tree, each of which changes it by other calls.
cp -a data data.copy
cp best.pt checkpoints/step-3.pt
cp --sparse=always sparse sparse2
mv checkpoints/step-1.pt checkpoints/old/
mv data renamed
rm -r deep
sed -i 's/line/LINE/' log.txt
echo appended >> log.txt
cat log.txt
echo overwritten > best.pt
ln -sf best.pt latest
ln best.pt hardlink
touch -d 2001-01-01T00:00:00Z empty/touched best.pt
stat -c '%n %a %s %Y' best.pt empty/touched renamed/a.csv
chmod 600 renamed/b.csv
chmod -R go-rwx checkpoints
mkdir -p new/a/b
tar cf all.tar checkpoints renamed
mkdir out
tar xf all.tar -C out
tar tf all.tar | sort
find . | sort
find . -type f -name '*.csv' -size +0 -exec sha256sum {} + | sort
find checkpoints -name 'step-*' -delete
ls -R
ls -la checkpoints | wc -l
du -a --apparent-size out | wc -l
diff -r renamed data.copy
rm -rf out renamed
rmdir new/a/b
cd new
pwd
/bin/pwd
echo inside > file
cd ..
install -m 640 run.sh new/installed
dd if=/dev/zero of=best.pt bs=1 count=3 seek=2 conv=notrunc status=none
od -c best.pt
truncate -s 2 log.txt
split -b 5000 sparse part-
ls part-* | wc -l
mktemp -d ./tmp-XXXXXX | wc -c
rmdir tmp-*
shopt -s nullglob 2>/dev/null
echo *
realpath folder latest dangling loop
readlink -f absolute/a.csv
test -e data && echo data
test -w best.pt && echo writable
./run.sh now
xargs -n1 echo < run.sh
rm all.tar
