"""The lexicon of the translation data: English words, and what they are in German.

A line of `NOUNS` is: English singular and plural, German singular, gender, plural; a last `n` or `en` is what weak
nouns end in in all cases but the nominative. No plural (`-`): a substance, used without an article. A line of verbs is:
the English base, third person and past, German `ich`, `du`, `er`, infinitive, participle, auxiliary; what follows `+`
is a German separable particle. A `_` joins English words (*pick up*).
"""

from typing import NamedTuple

NOUNS = {
    "man": """
        man men Mann m Männer
        father fathers Vater m Väter
        brother brothers Bruder m Brüder
        son sons Sohn m Söhne
        uncle uncles Onkel m Onkel
        boy boys Junge m Jungen n
        king kings König m Könige
        doctor doctors Arzt m Ärzte
        teacher teachers Lehrer m Lehrer
        pupil pupils Schüler m Schüler
        student students Student m Studenten en
        neighbour neighbours Nachbar m Nachbarn n
        friend friends Freund m Freunde
        guest guests Gast m Gäste
        cook cooks Koch m Köche
        baker bakers Bäcker m Bäcker
        farmer farmers Bauer m Bauern n
        painter painters Maler m Maler
        judge judges Richter m Richter
        writer writers Schriftsteller m Schriftsteller
        driver drivers Fahrer m Fahrer
        gardener gardeners Gärtner m Gärtner
        policeman policemen Polizist m Polizisten en
        tourist tourists Tourist m Touristen en
        colleague colleagues Kollege m Kollegen n
        customer customers Kunde m Kunden n
        boss bosses Chef m Chefs
        waiter waiters Kellner m Kellner
    """,
    "woman": """
        woman women Frau f Frauen
        mother mothers Mutter f Mütter
        sister sisters Schwester f Schwestern
        daughter daughters Tochter f Töchter
        aunt aunts Tante f Tanten
        grandmother grandmothers Großmutter f Großmütter
        queen queens Königin f Königinnen
        nurse nurses Krankenschwester f Krankenschwestern
        actress actresses Schauspielerin f Schauspielerinnen
        waitress waitresses Kellnerin f Kellnerinnen
        princess princesses Prinzessin f Prinzessinnen
        cousin cousins Cousine f Cousinen
    """,
    "child": """
        child children Kind n Kinder
        girl girls Mädchen n Mädchen
        baby babies Baby n Babys
    """,
    "animal": """
        dog dogs Hund m Hunde
        cat cats Katze f Katzen
        horse horses Pferd n Pferde
        bird birds Vogel m Vögel
        cow cows Kuh f Kühe
        goat goats Ziege f Ziegen
        mouse mice Maus f Mäuse
        rabbit rabbits Kaninchen n Kaninchen
        bear bears Bär m Bären en
        pig pigs Schwein n Schweine
        goose geese Gans f Gänse
        lion lions Löwe m Löwen n
    """,
    "food": """
        bread - Brot n -
        cheese - Käse m -
        soup soups Suppe f Suppen
        apple apples Apfel m Äpfel
        egg eggs Ei n Eier
        cake cakes Kuchen m Kuchen
        pear pears Birne f Birnen
        sausage sausages Wurst f Würste
        potato potatoes Kartoffel f Kartoffeln
        salad salads Salat m Salate
        banana bananas Banane f Bananen
        pizza pizzas Pizza f Pizzas
    """,
    "drink": """
        milk - Milch f -
        water - Wasser n -
        coffee - Kaffee m -
        tea - Tee m -
        wine - Wein m -
        juice - Saft m -
        beer - Bier n -
    """,
    "text": """
        book books Buch n Bücher
        letter letters Brief m Briefe
        newspaper newspapers Zeitung f Zeitungen
        story stories Geschichte f Geschichten
        poem poems Gedicht n Gedichte
        report reports Bericht m Berichte
        novel novels Roman m Romane
        article articles Artikel m Artikel
        message messages Nachricht f Nachrichten
        postcard postcards Postkarte f Postkarten
    """,
    "vehicle": """
        car cars Auto n Autos
        bicycle bicycles Fahrrad n Fahrräder
        boat boats Boot n Boote
        bus buses Bus m Busse
        lorry lorries Lastwagen m Lastwagen
        motorbike motorbikes Motorrad n Motorräder
        ship ships Schiff n Schiffe
        sledge sledges Schlitten m Schlitten
    """,
    "clothes": """
        coat coats Mantel m Mäntel
        hat hats Hut m Hüte
        shirt shirts Hemd n Hemden
        jacket jackets Jacke f Jacken
        dress dresses Kleid n Kleider
        skirt skirts Rock m Röcke
        jumper jumpers Pullover m Pullover
        blouse blouses Bluse f Blusen
        shoe shoes Schuh m Schuhe
        suit suits Anzug m Anzüge
    """,
    "device": """
        lamp lamps Lampe f Lampen
        computer computers Computer m Computer
        radio radios Radio n Radios
        machine machines Maschine f Maschinen
        camera cameras Kamera f Kameras
        television televisions Fernseher m Fernseher
    """,
    "thing": """
        table tables Tisch m Tische
        chair chairs Stuhl m Stühle
        bed beds Bett n Betten
        clock clocks Uhr f Uhren
        key keys Schlüssel m Schlüssel
        bag bags Tasche f Taschen
        picture pictures Bild n Bilder
        umbrella umbrellas Regenschirm m Regenschirme
        knife knives Messer n Messer
        cup cups Tasse f Tassen
        plate plates Teller m Teller
        bottle bottles Flasche f Flaschen
        ring rings Ring m Ringe
        ball balls Ball m Bälle
        flower flowers Blume f Blumen
        present presents Geschenk n Geschenke
        mirror mirrors Spiegel m Spiegel
        pencil pencils Bleistift m Bleistifte
        guitar guitars Gitarre f Gitarren
        carpet carpets Teppich m Teppiche
        basket baskets Korb m Körbe
        rope ropes Seil n Seile
        map maps Landkarte f Landkarten
        parcel parcels Paket n Pakete
    """,
    "door": """
        door doors Tür f Türen
        window windows Fenster n Fenster
        box boxes Kiste f Kisten
        suitcase suitcases Koffer m Koffer
        cupboard cupboards Schrank m Schränke
        gate gates Tor n Tore
    """,
    "room": """
        room rooms Zimmer n Zimmer
        kitchen kitchens Küche f Küchen
        flat flats Wohnung f Wohnungen
        cellar cellars Keller m Keller
        office offices Büro n Büros
        garage garages Garage f Garagen
    """,
    "place": """
        garden gardens Garten m Gärten
        house houses Haus n Häuser
        school schools Schule f Schulen
        park parks Park m Parks
        church churches Kirche f Kirchen
        museum museums Museum n Museen
        hospital hospitals Krankenhaus n Krankenhäuser
        library libraries Bibliothek f Bibliotheken
        forest forests Wald m Wälder
        village villages Dorf n Dörfer
        city cities Stadt f Städte
        restaurant restaurants Restaurant n Restaurants
        shop shops Laden m Läden
        hotel hotels Hotel n Hotels
        theatre theatres Theater n Theater
        castle castles Schloss n Schlösser
        factory factories Fabrik f Fabriken
        station stations Bahnhof m Bahnhöfe
    """,
}
NAMES = {
    "m": ("Peter", "Paul", "Jonas", "Felix", "David", "Simon", "Martin", "Thomas", "Lukas", "Daniel"),
    "f": ("Anna", "Maria", "Clara", "Emma", "Laura", "Julia", "Sarah", "Lisa", "Nina", "Paula"),
}
PEOPLE = ("man", "woman", "child")
THINGS = ("text", "vehicle", "clothes", "device", "thing")

ADJECTIVES = {  # English, German, its stem where that differs
    "person": """
        old alt, young jung, friendly freundlich, tired müde müd, famous berühmt, rich reich, poor arm, clever klug,
        strong stark, lazy faul, happy glücklich, sad traurig, hungry hungrig, ill krank, polite höflich, brave mutig,
        nervous nervös, shy schüchtern, curious neugierig, honest ehrlich, tall groß, quiet ruhig
    """,
    "animal": "small klein, big groß, old alt, black schwarz, white weiß, brown braun, wild wild, hungry hungrig",
    "food": "fresh frisch, good gut, warm warm, cheap billig, delicious köstlich, sweet süß, cold kalt",
    "drink": "cold kalt, fresh frisch, good gut, expensive teuer teur, cheap billig, warm warm",
    "text": """
        long lang, short kurz, interesting interessant, new neu, boring langweilig, important wichtig, funny lustig
    """,
    "thing": """
        new neu, old alt, big groß, small klein, red rot, green grün, blue blau, black schwarz, white weiß, yellow gelb,
        expensive teuer teur, cheap billig, beautiful schön, ugly hässlich, dirty schmutzig, heavy schwer,
        dark dunkel dunkl, modern modern, simple einfach, useful nützlich, valuable wertvoll
    """,
    "place": """
        old alt, new neu, big groß, small klein, beautiful schön, quiet ruhig, dark dunkel dunkl, famous berühmt,
        modern modern
    """,
}
COLOURS = ("red", "green", "blue", "black", "white", "yellow", "dark")
OPPOSITES = (  # what is not said of one thing
    *({"old", "young"}, {"old", "new"}, {"rich", "poor"}, {"happy", "sad"}, {"small", "big"}, {"tall", "small"}),
    *({"warm", "cold"}, {"cheap", "expensive"}, {"cheap", "valuable"}, {"long", "short"}, {"interesting", "boring"}),
    *({"beautiful", "ugly"}, {"brave", "shy"}, {"old", "modern"}, {"funny", "boring"}, {"strong", "ill"}),
    *({"black", "white"}, {"black", "brown"}, {"white", "brown"}),
    *({one, other} for one in COLOURS for other in COLOURS if one != other),
)
ADJECTIVES_OF = {  # the kind of a noun to the kind of its adjectives
    **dict.fromkeys(PEOPLE, "person"),
    **dict.fromkeys(("vehicle", "clothes", "device", "thing", "door"), "thing"),
    **dict.fromkeys(("room", "place"), "place"),
    **{kind: kind for kind in ("animal", "food", "drink", "text")},
}

TRANSITIVE = {  # kinds of objects: verbs
    (*THINGS, "food"): """
        buy buys bought kaufe kaufst kauft kaufen gekauft haben
        sell sells sold verkaufe verkaufst verkauft verkaufen verkauft haben
        need needs needed brauche brauchst braucht brauchen gebraucht haben
        bring_along brings_along brought_along bringe bringst bringt bringen gebracht haben + mit
        throw_away throws_away threw_away werfe wirfst wirft werfen geworfen haben + weg
        steal steals stole stehle stiehlst stiehlt stehlen gestohlen haben
    """,
    (*PEOPLE, "animal", "text", "thing"): """
        see sees saw sehe siehst sieht sehen gesehen haben
        find finds found finde findest findet finden gefunden haben
        look_for looks_for looked_for suche suchst sucht suchen gesucht haben
        forget forgets forgot vergesse vergisst vergisst vergessen vergessen haben
        look_at looks_at looked_at sehe siehst sieht sehen gesehen haben + an
    """,
    PEOPLE: """
        know knows knew kenne kennst kennt kennen gekannt haben
        visit visits visited besuche besuchst besucht besuchen besucht haben
        love loves loved liebe liebst liebt lieben geliebt haben
        ask asks asked frage fragst fragt fragen gefragt haben
        understand understands understood verstehe verstehst versteht verstehen verstanden haben
        greet greets greeted grüße grüßt grüßt grüßen gegrüßt haben
        call calls called rufe rufst ruft rufen gerufen haben + an
        invite invites invited lade lädst lädt laden geladen haben + ein
        pick_up picks_up picked_up hole holst holt holen geholt haben + ab
        wake_up wakes_up woke_up wecke weckst weckt wecken geweckt haben + auf
        laugh_at laughs_at laughed_at lache lachst lacht lachen gelacht haben + aus
    """,
    ("animal",): """
        feed feeds fed füttere fütterst füttert füttern gefüttert haben
        hear hears heard höre hörst hört hören gehört haben
        catch catches caught fange fängst fängt fangen gefangen haben + ein
    """,
    ("text",): """
        read reads read lese liest liest lesen gelesen haben
        write writes wrote schreibe schreibst schreibt schreiben geschrieben haben
        translate translates translated übersetze übersetzt übersetzt übersetzen übersetzt haben
        copy copies copied schreibe schreibst schreibt schreiben geschrieben haben + ab
    """,
    ("food",): """
        eat eats ate esse isst isst essen gegessen haben
        cook cooks cooked koche kochst kocht kochen gekocht haben
        prepare prepares prepared bereite bereitest bereitet bereiten bereitet haben + vor
    """,
    ("drink",): """
        drink drinks drank trinke trinkst trinkt trinken getrunken haben
        order orders ordered bestelle bestellst bestellt bestellen bestellt haben
    """,
    ("vehicle", "device"): """
        repair repairs repaired repariere reparierst repariert reparieren repariert haben
        try_out tries_out tried_out probiere probierst probiert probieren probiert haben + aus
    """,
    ("clothes",): """
        wear wears wore trage trägst trägt tragen getragen haben
        wash washes washed wasche wäschst wäscht waschen gewaschen haben
        try_on tries_on tried_on probiere probierst probiert probieren probiert haben + an
        take_off takes_off took_off ziehe ziehst zieht ziehen gezogen haben + aus
    """,
    ("device",): """
        turn_on turns_on turned_on schalte schaltest schaltet schalten geschaltet haben + ein
        turn_off turns_off turned_off schalte schaltest schaltet schalten geschaltet haben + aus
    """,
    ("door",): """
        open opens opened mache machst macht machen gemacht haben + auf
        close closes closed mache machst macht machen gemacht haben + zu
    """,
    ("room",): """
        tidy_up tidies_up tidied_up räume räumst räumt räumen geräumt haben + auf
        clean cleans cleaned putze putzt putzt putzen geputzt haben
    """,
}
DATIVE = """
    help helps helped helfe hilfst hilft helfen geholfen haben
    thank thanks thanked danke dankst dankt danken gedankt haben
    follow follows followed folge folgst folgt folgen gefolgt sein
    answer answers answered antworte antwortest antwortet antworten geantwortet haben
    trust trusts trusted vertraue vertraust vertraut vertrauen vertraut haben
    listen_to listens_to listened_to höre hörst hört hören gehört haben + zu
    congratulate congratulates congratulated gratuliere gratulierst gratuliert gratulieren gratuliert haben
    watch watches watched sehe siehst sieht sehen gesehen haben + zu
"""
DITRANSITIVE = """
    give gives gave gebe gibst gibt geben gegeben haben
    show shows showed zeige zeigst zeigt zeigen gezeigt haben
    send sends sent schicke schickst schickt schicken geschickt haben
    lend lends lent leihe leihst leiht leihen geliehen haben
    promise promises promised verspreche versprichst verspricht versprechen versprochen haben
    hand hands handed reiche reichst reicht reichen gereicht haben
"""
INTRANSITIVE = """
    sleep sleeps slept schlafe schläfst schläft schlafen geschlafen haben
    work works worked arbeite arbeitest arbeitet arbeiten gearbeitet haben
    wait waits waited warte wartest wartet warten gewartet haben
    laugh laughs laughed lache lachst lacht lachen gelacht haben
    dance dances danced tanze tanzt tanzt tanzen getanzt haben
    sing sings sang singe singst singt singen gesungen haben
    cry cries cried weine weinst weint weinen geweint haben
    play plays played spiele spielst spielt spielen gespielt haben
    stay stays stayed bleibe bleibst bleibt bleiben geblieben sein
    fall_asleep falls_asleep fell_asleep schlafe schläfst schläft schlafen geschlafen sein + ein
    get_up gets_up got_up stehe stehst steht stehen gestanden sein + auf
    arrive arrives arrived komme kommst kommt kommen gekommen sein + an
"""
RETURN = """
    come_back comes_back came_back komme kommst kommt kommen gekommen sein + zurück
    leave leaves left fahre fährst fährt fahren gefahren sein + ab
    go_away goes_away went_away gehe gehst geht gehen gegangen sein + weg
"""
MOTION = """
    go goes went gehe gehst geht gehen gegangen sein
    run runs ran laufe läufst läuft laufen gelaufen sein
    drive drives drove fahre fährst fährt fahren gefahren sein
    come comes came komme kommst kommt kommen gekommen sein
    hurry hurries hurried eile eilst eilt eilen geeilt sein
"""
PREPOSITIONAL = ("look_for", "look_at", "laugh_at", "listen_to")  # *looks at it*, not *looks it at*
SPEECH = """
    say says said sage sagst sagt sagen gesagt haben
    believe believes believed glaube glaubst glaubt glauben geglaubt haben
    think thinks thought denke denkst denkt denken gedacht haben
    hope hopes hoped hoffe hoffst hofft hoffen gehofft haben
    know knows knew weiß weißt weiß wissen gewusst haben
    hear hears heard höre hörst hört hören gehört haben
    write writes wrote schreibe schreibst schreibt schreiben geschrieben haben
"""
MODALS = (  # English (present tense, before a base form), German ich, du, er, infinitive
    ("can", "kann", "kannst", "kann", "können"),
    ("must", "muss", "musst", "muss", "müssen"),
    ("should", "sollte", "solltest", "sollte", "sollten"),
    ("may", "darf", "darfst", "darf", "dürfen"),
    ("want", "will", "willst", "will", "wollen"),
)
TIMES = {  # tense: English, German; what can stand first in both
    "past": (
        *(("yesterday", "gestern"), ("last week", "letzte Woche"), ("last summer", "letzten Sommer")),
        *(("a year ago", "vor einem Jahr"), ("on Monday", "am Montag"), ("this morning", "heute Morgen")),
    ),
    "present": (
        *(("today", "heute"), ("now", "jetzt"), ("every day", "jeden Tag"), ("every morning", "jeden Morgen")),
        *(("in the evening", "am Abend"), ("on Sundays", "sonntags")),
    ),
    "future": (
        *(("tomorrow", "morgen"), ("next week", "nächste Woche"), ("soon", "bald"), ("on Friday", "am Freitag")),
        *(("tonight", "heute Abend"), ("in the afternoon", "am Nachmittag")),
    ),
}
FREQUENCIES = (("often", "oft"), ("always", "immer"), ("never", "nie"), ("sometimes", "manchmal"), ("rarely", "selten"))
MANNERS = (
    ("quickly", "schnell"),
    ("carefully", "vorsichtig"),
    ("slowly", "langsam"),
    ("quietly", "leise"),
    ("alone", "allein"),
)
CONJUNCTIONS = {  # before a clause in the present, or in the past
    "because": ("weil", "weil"),
    "although": ("obwohl", "obwohl"),
    "when": ("wenn", "als"),
    "while": ("während", "während"),
    "before": ("bevor", "bevor"),
}


class Noun(NamedTuple):
    """A noun of both languages; `weak` is its ending in all cases but the nominative, "" if it has none."""

    kind: str
    en: str
    en_plural: str
    de: str
    gender: str
    de_plural: str
    weak: str


class Verb(NamedTuple):
    """A verb of both languages; German forms are without the separable particle."""

    en: tuple[str, str, str]
    de: tuple[str, str, str, str]
    participle: str
    auxiliary: str
    particle: str
    prepositional: bool


class Adjective(NamedTuple):
    """An adjective of both languages; endings are put behind `stem`."""

    en: str
    de: str
    stem: str


def nouns() -> dict[str, list[Noun]]:
    """The nouns of each kind."""
    lexicon: dict[str, list[Noun]] = {}
    for kind, lines in NOUNS.items():
        rows = [line.split() for line in lines.strip().split("\n")]
        lexicon[kind] = [Noun(kind, *row[:5], row[5] if len(row) > 5 else "") for row in rows]
    return lexicon


def verbs(lines: str) -> list[Verb]:
    """The verbs of some lines."""
    lexicon = []
    for line in lines.strip().split("\n"):
        row, _, particle = line.partition(" + ")
        cells = row.split()
        base, third, past = (form.replace("_", " ") for form in cells[:3])
        forms = (cells[3], cells[4], cells[5], cells[6])
        lexicon.append(Verb((base, third, past), forms, cells[7], cells[8], particle, cells[0] in PREPOSITIONAL))
    return lexicon


def adjectives() -> dict[str, list[Adjective]]:
    """The adjectives of each kind."""
    lexicon = {}
    for kind, words in ADJECTIVES.items():
        rows = [word.split() for word in words.split(",")]
        lexicon[kind] = [Adjective(row[0], row[1], row[-1]) for row in rows]
    return lexicon
