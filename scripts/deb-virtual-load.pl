# A program on a mount, over an upgrade: perl load.pl DIRECTORY. It keeps two files open, one of them past
# the kernel's cache, and writes and reads them all the time. It makes the file `started` when it is well
# under way, and ends some time after there is a file `stop`. What must be in both files then is in
# `expected`, what it has to say in `load`.
use strict;
use warnings;
use Fcntl qw(:DEFAULT :flock O_DIRECT);
use IO::Handle;
use POSIX ();

my ($directory) = @ARGV;
my ($block, $blocks, $after_min) = (4096, 200, 200);
my @opened = map {
    sysopen(my $file, "$directory/$_->[0]", O_RDWR | O_CREAT | $_->[1]) or die "$_->[0]: $!\n";
    $file;
} (["kept", 0], ["direct", O_DIRECT]);
flock($opened[0], LOCK_EX | LOCK_NB) or die "flock: $!\n";

# Ticks of a clock that goes on whatever is done, and how many of them are a second.
sub ticks { return (POSIX::times())[0] }
my $second = POSIX::sysconf(POSIX::_SC_CLK_TCK());
my ($longest, $rounds, $after) = (0, 0, 0);
my @expected = ("\0" x $block) x $blocks;

sub bytes_of { return pack("Q<2", $_[0], $_[0] * 7 + 1) x ($block / 16) }

sub read_back { # FILE PLACE
    sysseek($_[0], $_[1] * $block, 0) // die "seek: $!\n";
    my $read = sysread($_[0], my $bytes, $block) // die "read: $!\n";
    die "block $_[1] is wrong in round $rounds\n" if $read != $block || $bytes ne $expected[$_[1]];
}

while ($after < $after_min) {
    my $place = $rounds % $blocks;
    $expected[$place] = bytes_of($rounds);
    my $start = ticks();
    for my $file (@opened) {
        sysseek($file, $place * $block, 0) // die "seek: $!\n";
        my $written = syswrite($file, $expected[$place]) // die "write: $!\n";
        die "$written bytes written of $block\n" if $written != $block;
        $file->sync or die "sync: $!\n" if $file == $opened[0];
        read_back($file, int(rand($rounds < $blocks ? $rounds + 1 : $blocks)));
    }
    my $took = ticks() - $start;
    $longest = $took if $took > $longest;
    $rounds++;
    note("started", "") if $rounds == $blocks;
    $after++ if -e "stop";
}
for my $file (@opened) { close($file) or die "close: $!\n" }
note("expected", join("", @expected));
note("load", sprintf("%d rounds, %d of them after it, the longest took %d ms", $rounds, $after, $longest * 1000 / $second));

sub note { # FILE TEXT
    open(my $file, ">", $_[0]) or die "$_[0]: $!\n";
    print $file $_[1];
    close($file) or die "$_[0]: $!\n";
}
